"""The broker's configuration: declared keys, where values come from, and how DescribeConfigs tells of them."""
