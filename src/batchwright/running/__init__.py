"""Who works on a run, who watches that they do, and what is mended before they begin."""
