"""Any file of rows, in pieces that fit in memory and can be read in another process."""
