"""The seams to the operating system: files, clocks and thread priorities. Everything else here gets them passed in."""
