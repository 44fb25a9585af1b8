"""Engine processes as pods of a Kubernetes cluster."""
