"""The server that is tried: a process of its own on a free loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.errors import EngineError
from engine.server.trial.client import Client

_READY_S = 300.0
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    client: Client
    process: psutil.Process

    @property
    def memory_mb(self) -> float:
        """Resident memory, MiB."""
        return float(self.process.memory_info().rss) / 2**20

    @property
    def cpu_s(self) -> float:
        """Processor time so far, seconds."""
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    @property
    def descriptors(self) -> int:
        """Open files and sockets."""
        return int(self.process.num_fds())


@contextlib.asynccontextmanager
async def served(config: Mapping[str, Any], *options: str) -> AsyncIterator[Served]:
    """The embedded model under `config`, ready; EngineError when it never is."""
    with tempfile.TemporaryDirectory() as folder:
        best = Path(folder) / "best.json"
        best.write_text(json.dumps({"config": dict(config)}))
        command = ["-m", "engine.server", "--config", str(best), "--name", "tiny", "--port", "0"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *options, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_READY_S):
                port = await _port(process)
            yield Served(Client(port), psutil.Process(process.pid))
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), _LEAVE_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"Serving"):
            return int(line.partition(b"/v1")[0].rpartition(b":")[2])
    raise EngineError("The server ended before it was ready.")
