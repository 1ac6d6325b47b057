"""From a frame to an answer: the table of APIs, routes, dispatch, throttling, and ways around decoding for repeated
requests."""
