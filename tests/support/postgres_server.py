"""Run a command with a PostgreSQL server of its own (`python -m tests.support.postgres_server COMMAND ...`).

The server is new, listens on the loopback alone, and is removed at the end. RECOVER_TEST_POSTGRES names it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.attacks.load import free_port

NOT_ROOT = 65534  # as whom root runs the server, which refuses root


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server is stopped on the way out
    programs = installed()
    if programs is None:
        print("left out: no PostgreSQL server is installed")
        return 0
    with server(programs) as url:
        return subprocess.run(command, env={**os.environ, "RECOVER_TEST_POSTGRES": url}).returncode


def installed() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; Debian has them outside the PATH."""
    elsewhere = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *map(str, elsewhere)])
    found = shutil.which("pg_ctl", path=path)
    return Path(found).parent if found and Path(found).with_name("initdb").exists() else None


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """Start a server in a new folder; stop and remove it at the end."""
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": NOT_ROOT, "group": NOT_ROOT, "extra_groups": []}
    password, port = secrets.token_hex(16), free_port()
    with tempfile.TemporaryDirectory(prefix="recover-postgres-") as name:
        folder = Path(name)
        (folder / "password").write_text(password)
        if user:
            for path in (folder, folder / "password"):
                os.chown(path, NOT_ROOT, NOT_ROOT)

        def run(program: str, *options: str) -> None:
            command = [str(programs / program), "-D", str(folder / "data"), *options]
            subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True, **user)

        named = ("--username=tests", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}")
        run("initdb", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", *named)
        settings = f"-F -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", settings)
        try:
            yield f"postgresql://tests:{password}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
