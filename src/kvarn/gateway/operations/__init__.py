"""What the routes do, free of HTTP: the same work is asked for by a batch's line or another API's request."""
