"""Services without content: each answers its readiness probe and behaves as its test asks."""

import os
from pathlib import Path

from lehr.stack import RUNNER, SERVICES

_PROGRAM = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

prefix = __spec__.name.split(".")[1].upper()
if os.environ.get(prefix + "_FAKE") == "crash":
    sys.exit("the settings are wrong, said the service")
if os.environ.get(prefix + "_FAKE") == "lose a child":
    # A child in a session of its own, whose parent is gone.
    script = "(setsid sleep 6543 & echo $! > " + os.environ[prefix + "_STATE_DIR"] + "/child)"
    subprocess.run(["sh", "-c", script], check=True)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *message):
        pass


host, port = os.environ[prefix + "_METRICS_LISTEN"].split(":")
print("serves", flush=True)
HTTPServer((host, int(port)), Answer).serve_forever()
"""


def environment_with_fakes(folder: Path) -> dict[str, str]:
    """Write a package ``services`` and return an environment in which it hides the real one."""
    for name in (*SERVICES, RUNNER):
        package = folder / "services" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(_PROGRAM)
    (folder / "services" / "__init__.py").touch()
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
