"""One of Kafka's command-line tools, run by the process at a port of 127.0.0.1: ``ask_tool.py PORT CLASS ARGUMENT...``.

It prints what the tool printed, and ends with the tool's exit code. The tool's standard input is empty. The tool runs
in another working directory, so it gets copies of properties files, with absolute paths.
"""

import json
import os
import re
import socket
import sys


def copy_with_absolute_paths(path: str) -> str:
    """Copy a properties file, and return the path of the copy."""
    with open(path) as file:
        text = file.read()
    text = re.sub(r"(?<=\.location=).+", lambda found: os.path.abspath(found[0]), text)
    copy = os.path.abspath(path) + ".absolute"
    with open(copy, "w") as file:
        file.write(text)
    return copy


def main() -> int:
    """Send the request, print the response, and return the exit code."""
    port, tool, *arguments = sys.argv[1:]
    words = [copy_with_absolute_paths(word) if word.endswith(".properties") else word for word in arguments]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.sendall(json.dumps([tool, words]).encode() + b"\n")
        with connection.makefile("r", encoding="utf-8") as answer:
            code, output, errors = json.loads(answer.readline())
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
