"""A headless Chromium that is steered over the DevTools protocol, with what Python has."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class WebSocket:
    """RFC 6455, as far as a client needs it: texts, of which long ones may come in parts."""

    def __init__(self, port, path):
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.connection.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                 f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.stream = self.connection.makefile("rb")
        assert b"101" in self.stream.readline(), "the browser refuses the connection"
        while self.stream.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = struct.pack("!BB", 0x81, 0x80 | len(data)) if len(data) < 126 else (
            struct.pack("!BBH", 0x81, 0x80 | 126, len(data)) if len(data) < 65536 else struct.pack("!BBQ", 0x81, 0x80 | 127, len(data)))
        self.connection.sendall(size + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self):
        text, last = b"", False
        while not last:
            head, size = self.stream.read(2)
            size &= 0x7F
            if size >= 126:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            text, last = text + self.stream.read(size), bool(head & 0x80)
        return text.decode()


class Browser:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--window-size=1300,900", "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self.wait_for_port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            page = next(page for page in json.load(answer) if page["type"] == "page")
        self.socket = WebSocket(port, page["webSocketDebuggerUrl"].split(str(port), 1)[1])
        self.calls, self.events = 0, []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def wait_for_port(self):
        path = os.path.join(self.folder.name, "DevToolsActivePort")
        for _ in range(600):
            if os.path.exists(path) and (lines := open(path, encoding="utf-8").read().split()):
                return int(lines[0])
            assert self.process.poll() is None, "the browser has ended"
            time.sleep(0.1)
        raise AssertionError("the browser opens no port")

    def call(self, method, **parameters):
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.calls:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    def open(self, path):
        """Seconds until the page is loaded and drawn. Errors, dialogs and requests are in `events`."""
        self.events = []
        begin = time.monotonic()
        self.call("Page.navigate", url=f"file://{urllib.request.pathname2url(str(path))}")
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.socket.receive()))
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        return time.monotonic() - begin

    def run(self, script):
        """The value of the expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start, end):
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def problems(self):
        """What the page has done wrong since open()."""
        bad = {"Runtime.exceptionThrown", "Page.javascriptDialogOpening"}
        found = [event for event in self.events if event["method"] in bad]
        found += [event for event in self.events if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"]
        requests = [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return found + [url for url in requests if not url.startswith(("file:", "data:"))]

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.folder.cleanup()
