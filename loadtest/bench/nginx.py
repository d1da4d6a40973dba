"""nginx as a reverse proxy that does nothing else: the upper line of what a proxy can do."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.envoys import CONCURRENCY, Certificate
from loadtest.bench.servers import Server, running
from serving.local.home import write_atomically


def find_nginx() -> Path | None:
    """The program, where it is installed."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    return Path(found) if found else None


def nginx_version(program: Path) -> str:
    """Its version."""
    done = subprocess.run([program, "-v"], capture_output=True, text=True, check=False, timeout=10)
    found = re.search(r"nginx/(\S+)", done.stderr + done.stdout)
    return found[1] if found else "unknown"


def nginx_conf(folder: Path, port: int, backend: int, certificate: Certificate) -> str:
    """TLS in front, kept connections behind, no log of requests."""
    return f"""\
daemon off;
worker_processes {CONCURRENCY};
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  keepalive_requests 1000000;
  upstream backend {{
    server 127.0.0.1:{backend};
    keepalive 64;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {certificate.chain};
    ssl_certificate_key {certificate.key};
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""


@contextmanager
def nginx(
    program: Path, folder: Path, port: int, backend: int, certificate: Certificate
) -> Iterator[Server]:
    """A running nginx."""
    conf = folder / "nginx.conf"
    write_atomically(conf, nginx_conf(folder, port, backend, certificate))
    command = (program, "-p", folder, "-c", conf)
    with running("nginx", command, port, folder) as server:
        yield server
