"""One module per sub-command of the tidelog command line."""
