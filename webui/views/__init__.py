"""One file a page: widgets and layout, no arithmetic."""
