"""Reports as HTML pages: one file each, plots as inline SVG, no scripts, no network."""
