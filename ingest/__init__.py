"""Kubernetes objects become facts here. Only this package (and later the responders) talks to the API server."""
