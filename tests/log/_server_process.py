"""A real broker process for tests: started on a free port, stopped, killed, started again on the same directory."""

import signal
import subprocess
import sys
from collections.abc import Sequence


class ServerProcess:
    """`python -m logflume.log.server` on a data directory. After a restart the port is the same."""

    def __init__(self, data_dir: str, configs: Sequence[str] = ()) -> None:
        self.data_dir, self.configs = data_dir, configs
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it is ready."""
        command = [sys.executable, "-m", "logflume.log.server", "--data", self.data_dir, "--listen", self.address]
        for config in self.configs:
            command += ["--config", config]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready" in line, f"the broker did not start: {line!r}"
        self.port = int(line.split("127.0.0.1:")[1].split(",")[0])

    def kill(self) -> None:
        """SIGKILL: no last words."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM: graceful; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(30)
        self.process.stdout.close()
        self.process = None
        return code
