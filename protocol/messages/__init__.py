"""One module per API: its request and response declared once for all versions. Imported on the API's first use."""
