"""Models: installed, to download, and which pair is loaded."""
