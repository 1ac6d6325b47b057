"""Files and manifest of an exported table."""
