"""A Hugging Face Hub on this host, with its CDN: the API of a model, and its files behind redirects that expire."""
import contextlib
import hashlib
import json
import urllib.parse

from web_server import Page, WebServer

LARGE = 4 << 10  # such a file is kept by Git LFS: its digest is a SHA-256, and it comes from the CDN


def commit_of(text):
    return hashlib.sha1(text.encode()).hexdigest()


def digest_of(data):
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Cdn(WebServer):
    """Answers only to addresses that the hub has signed, `lives` times each."""

    def __init__(self):
        self.lives, self.left = None, {}
        super().__init__()

    def sign(self, path):
        signature = str(len(self.left))
        self.left[signature] = self.lives
        return f"{self.address}{path}?Expires=1&sig={signature}"

    def answer(self, request):
        signature = urllib.parse.parse_qs(request.path.partition("?")[2]).get("sig", [""])[0]
        if signature not in self.left or self.left[signature] == 0:
            self.requests.append((request.path, request.headers.get("Range"), dict(request.headers)))
            return self.reply(request, 403, {})
        if self.left[signature] is not None:
            self.left[signature] -= 1
        return super().answer(request)


class Hub(WebServer):
    """models: {ORG/MODEL: {revision: {path: bytes}}}. A model in `tokens` is private, one in `gated` has terms; `renamed` leads from
    an old name to the new one."""

    def __init__(self, cdn):
        self.cdn = cdn
        self.models, self.tokens, self.gated, self.renamed = {}, {}, set(), {}
        self.listed_sizes = {}  # {path: size} of the list
        self.wrong_digests = {}  # {path: digest} of the answers, not of the list
        self.quote = '"'  # around X-Linked-Etag
        self.wrong_files = {}  # {path: bytes, or a status} of the answers
        super().__init__()

    def files(self, model, revision):
        revisions = self.models[model]
        return next((files for name, files in revisions.items() if revision in (name, commit_of(model + name))), None)

    def add_model(self, model, files, revision="main"):
        self.models.setdefault(model, {})[revision] = files
        for data in files.values():
            self.cdn.pages["/" + digest_of(data)] = Page.of(data, '"cdn"')
        return commit_of(model + revision)

    def refuse(self, request, status, code):
        self.reply(request, status, {"X-Error-Code": code, "X-Error-Message": code})

    def answer(self, request):
        with self.lock:
            self.requests.append((request.path, request.headers.get("Range"), dict(request.headers)))
            fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return self.reply(request, fault, self.fault_headers)
        path = request.path.partition("?")[0]
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        if len(parts) < 4:
            return self.refuse(request, 404, "RepoNotFound")
        model, revision = "/".join(parts[:2]), urllib.parse.unquote(parts[3])
        if model in self.renamed:
            return self.reply(request, 307, {"Location": request.path.replace(model, self.renamed[model])})
        if model not in self.models or (model in self.tokens and
                                        request.headers.get("Authorization") != f"Bearer {self.tokens[model]}"):
            return self.refuse(request, 401, "RepoNotFound")
        if model in self.gated:
            return self.refuse(request, 403, "GatedRepo")
        files = self.files(model, revision)
        if files is None:
            return self.refuse(request, 404, "RevisionNotFound")
        commit = next(commit_of(model + name) for name, known in self.models[model].items() if known is files)
        if is_api:
            return self.give(request, json.dumps(self.list_of(model, commit, files)).encode(), {})
        name = urllib.parse.unquote("/".join(parts[4:]))
        if name not in files:
            return self.refuse(request, 404, "EntryNotFound")
        data = files[name]
        digest = self.wrong_digests.get(name, digest_of(data))
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
        wrong = self.wrong_files.get(name, data)
        if isinstance(wrong, int):
            return self.reply(request, wrong, {})
        if len(data) < LARGE:  # as a whole, whatever range is asked for
            return self.give(request, wrong, headers)
        headers |= {"X-Linked-Etag": f"{self.quote}{digest}{self.quote}", "X-Linked-Size": str(len(data)),
                    "Location": self.cdn.sign("/" + digest_of(data))}
        return self.reply(request, 302, headers)

    def list_of(self, model, commit, files):
        def sibling(path, data):
            entry = {"rfilename": path, "size": self.listed_sizes.get(path, len(data)), "blobId": hashlib.sha1(data).hexdigest()}
            if len(data) < LARGE:
                return entry | {"blobId": digest_of(data)}
            return entry | {"lfs": {"sha256": digest_of(data), "size": len(data), "pointerSize": 135}}

        return {"_id": "1", "id": model, "modelId": model, "sha": commit, "private": False, "tags": ["a", {"b": [1.5, None]}],
                "siblings": [sibling(path, data) for path, data in files.items()]}

    def give(self, request, data, headers):
        request.send_response(200)
        self.end_headers(request, headers | {"Content-Length": str(len(data))})
        if request.command != "HEAD":
            request.wfile.write(data)


@contextlib.contextmanager
def hub_served():
    cdn = Cdn()
    hub = Hub(cdn)
    try:
        yield hub
    finally:
        hub.close()
        cdn.close()
