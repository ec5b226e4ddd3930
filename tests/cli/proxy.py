"""A proxy on this machine that forwards what goes to another port, until it is told to lose it."""

import pathlib
import socket
import threading


class Proxy:
    """Connections to `port` go on to where `target`, a file of "HOST PORT", says once somebody comes."""

    def __init__(self, target):
        self.target, self.forwards, self.sockets = pathlib.Path(target), True, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                came = self.listener.accept()[0]
                host, port = self.target.read_text().split()
                other = socket.create_connection((host, int(port)))
            except OSError:
                return
            self.sockets += [came, other]
            for ends in ((came, other), (other, came)):
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source, target):
        try:
            while data := source.recv(1 << 16):
                if self.forwards:
                    target.sendall(data)
            if self.forwards:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def drop(self):
        """From now on nothing arrives, and nobody is told."""
        self.forwards = False

    def close(self):
        self.drop()
        for end in (self.listener, *self.sockets):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
