"""An engine process (`server`), and one replica as other processes see it (`client`)."""
