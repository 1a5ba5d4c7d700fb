"""The dashboard: the page at `/`, as files that the service sends. Nothing is loaded from elsewhere."""
