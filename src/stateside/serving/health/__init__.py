"""How a server is: is it ready, what does it measure, what does it log, and which trace does a request belong to."""
