"""A web server on this host that serves files by ranges, and fails on demand."""
import contextlib
import http.server
import re
import socket
import ssl
import struct
import subprocess
import threading

import pytest

PIECE = 64 << 10


class Page:
    """A file of the server. `read(offset, size)` gives its bytes, so that a large file needs no memory."""

    def __init__(self, size, read, etag):
        self.size, self.read, self.etag = size, read, etag

    @classmethod
    def of(cls, data, etag='"1"'):
        return cls(len(data), lambda offset, size: data[offset:offset + size], etag)


class WebServer:
    """pages: {path: Page}. redirects: {path: address}. Each request takes the next of `faults`, an action of the tests or None, and
    `fault_of(path, first, last)` chooses one if that list is empty:

    - a number: this status, with the headers of `fault_headers`
    - ("cut", N): the connection ends after N bytes of the body; ("reset", N): with a reset
    - ("stall", N): nothing comes after N bytes until `resume` is set
    - ("flip", N): the range of the answer begins N bytes later than asked for
    - "whole": the whole file, as from a server without ranges
    - "no range": status 206 without Content-Range
    - "compressed": with Content-Encoding: gzip
    - "more": more bytes than asked for; "headers": a megabyte of headers
    """

    def __init__(self, tls=None):
        self.pages, self.redirects = {}, {}
        self.faults, self.fault_of, self.fault_headers = [], lambda *_: None, {}
        self.times = None  # Last-Modified of each answer
        self.requests = []  # (path, Range, headers)
        self.sent_bytes = 0  # of bodies
        self.resume = threading.Event()
        self.lock = threading.Lock()
        self.connections = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 0

            def log_message(self, *_):
                pass

            def setup(self):
                super().setup()
                owner.connections.append(self.connection)

            def do_GET(self):
                owner.answer(self)

            do_HEAD = do_PUT = do_GET

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_):  # a client that went away
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def address(self):
        host = "localhost" if self.scheme == "https" else "127.0.0.1"
        return f"{self.scheme}://{host}:{self.server.server_address[1]}"

    def add(self, path, data, etag='"1"'):
        self.pages[path] = Page.of(data, etag)
        return self.address + path

    def close(self):
        self.resume.set()
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def answer(self, request):
        path = request.path.partition("?")[0]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        first, last = map(int, wanted.groups()) if wanted else (0, 1 << 62)
        with self.lock:
            self.requests.append((request.path, request.headers.get("Range"), dict(request.headers)))
            fault = self.faults.pop(0) if self.faults else self.fault_of(path, first, last)
        if path in self.redirects and fault is None:
            return self.reply(request, 302, {"Location": self.redirects[path]})
        page = self.pages.get(path)
        if isinstance(fault, int):
            return self.reply(request, fault, self.fault_headers)
        if page is None:
            return self.reply(request, 404, {})
        kind, count = fault if isinstance(fault, tuple) else (fault, 0)
        if first >= page.size:
            return self.reply(request, 416, {"Content-Range": f"bytes */{page.size}"})
        last = min(last, page.size - 1)
        headers = {"ETag": page.etag} if page.etag else {}
        if self.times:
            headers["Last-Modified"] = next(self.times)
        if kind == "compressed":
            headers["Content-Encoding"] = "gzip"
        if kind == "flip":
            first, last = first + count, min(last + count, page.size - 1)
        if kind == "whole" or not wanted:
            first, last = 0, page.size - 1
        elif kind != "no range":
            headers["Content-Range"] = f"bytes {first}-{last}/{page.size}"
        if kind == "more":
            last = min(last + 1, page.size - 1)
        if kind == "headers":
            headers.update({f"X-{number}": "x" * 1000 for number in range(1000)})
        headers["Content-Length"] = str(last - first + 1)
        request.send_response(200 if kind == "whole" or not wanted else 206)
        self.end_headers(request, headers)
        self.send(request, page, first, last + 1, kind, count)

    def send(self, request, page, first, end, kind, count):
        stop = min(end, first + count) if kind in ("cut", "reset", "stall") else end
        while first < stop:
            piece = page.read(first, min(PIECE, stop - first))
            request.wfile.write(piece)
            with self.lock:
                self.sent_bytes += len(piece)
            first += len(piece)
        if kind == "stall":
            self.resume.wait()
        if kind == "reset":
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if first < end:
            request.close_connection = True

    def reply(self, request, status, headers):
        request.send_response(status)
        self.end_headers(request, {"Content-Length": "0", **headers})

    @staticmethod
    def end_headers(request, headers):
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()


@contextlib.contextmanager
def served(tls=None):
    server = WebServer(tls)
    try:
        yield server
    finally:
        server.close()


def needs_libcurl(stfs):
    """Skips a test if the program was built without libcurl."""
    if "built without libcurl" in subprocess.run([stfs, "ls", "https://"], capture_output=True, text=True).stderr:
        pytest.skip("this build has no libcurl")


def make_certificate(directory):
    """A key and a certificate of `localhost` that signs itself."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)  # fmt: skip
    return certificate, key
