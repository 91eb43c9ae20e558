"""A store on this host that speaks the protocol of S3 and checks each signature, and the services that give a program its keys."""
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import json
import urllib.parse
from xml.sax.saxutils import escape

from web_server import Page, WebServer

ACCESS, SECRET = "AKIDEXAMPLE", "secret/of+the/test"
MOST_SKEW = datetime.timedelta(minutes=15)


def etag_of(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def hmac_of(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def quoted(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


class S3Server(WebServer):
    """buckets: {name: {key: bytes}}. A bucket in `public` needs no signature. keys: {access key: (secret, token or None)}."""

    def __init__(self, tls=None):
        self.buckets, self.public = {"bucket": {}}, set()
        self.keys = {ACCESS: (SECRET, None)}
        self.expired = set()  # access keys
        self.region = "us-east-1"
        self.says_region = True  # in a header; otherwise in the text alone
        self.ahead = datetime.timedelta()  # of this server's clock
        self.page_size = 1000
        self.denied = set()  # keys of objects
        self.sends_elsewhere = {}  # {key: address}
        self.checked = 0  # good signatures
        super().__init__(tls)

    def put(self, key, data, bucket="bucket"):
        self.buckets.setdefault(bucket, {})[key] = data
        self.pages["/" + quoted(f"{bucket}/{key}", "/")] = Page.of(data, etag_of(data))
        return f"s3://{bucket}/{key}"

    def now(self):
        return datetime.datetime.now(datetime.timezone.utc) + self.ahead

    def fail(self, request, status, code, more="", headers=()):
        with self.lock:
            self.requests.append((request.path, request.headers.get("Range"), dict(request.headers)))
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>No.</Message>{more}</Error>'.encode()
        request.send_response_only(status)
        request.send_header("Date", email.utils.format_datetime(self.now(), usegmt=True))
        self.end_headers(request, {"Content-Length": str(len(text)), **dict(headers)})
        request.wfile.write(text)

    def check(self, request, bucket):
        """Returns why the request is refused: status, code, more text, headers. Or None."""
        text = request.headers.get("Authorization")
        if text is None:
            return None if bucket in self.public else (403, "AccessDenied")
        method, _, rest = text.partition(" ")
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        access, day, region, service, end = parts["Credential"].split("/")
        names = parts["SignedHeaders"].split(";")
        date = request.headers["x-amz-date"]
        must = {"host"} | {name.lower() for name in request.headers if name.lower().startswith("x-amz-") or name.lower() == "range"}
        assert method == "AWS4-HMAC-SHA256" and (service, end) == ("s3", "aws4_request") and must == set(names), text
        if access not in self.keys:
            return 403, "InvalidAccessKeyId"
        if region != self.region:
            headers = {"x-amz-bucket-region": self.region} if self.says_region else {}
            return 400, "AuthorizationHeaderMalformed", f"<Region>{self.region}</Region>", headers
        made = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(made - self.now()) > MOST_SKEW:
            return 403, "RequestTimeTooSkewed"
        secret, token = self.keys[access]
        path, _, query = request.path.partition("?")
        pairs = sorted((quoted(name), quoted(value)) for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True))
        lines = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names)
        canonical = "\n".join([request.command, quoted(urllib.parse.unquote(path), "/-_.~"),
                               "&".join(f"{name}={value}" for name, value in pairs), lines, ";".join(names),
                               request.headers["x-amz-content-sha256"]])
        signed = "\n".join([method, date, f"{day}/{region}/s3/aws4_request", hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + secret).encode()
        for part in (day, region, service, end):
            key = hmac_of(key, part)
        if hmac_of(key, signed).hex() != parts["Signature"] or day != date[:8]:
            return 403, "SignatureDoesNotMatch"
        if access in self.expired:
            return 400, "ExpiredToken"
        if request.headers.get("x-amz-security-token") != token:
            return 403, "InvalidToken"
        self.checked += 1
        return None

    def answer(self, request):
        path, _, query = request.path.partition("?")
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if refused := self.check(request, bucket):
            return self.fail(request, *refused)
        if bucket not in self.buckets:
            return self.fail(request, 404, "NoSuchBucket")
        if not key:
            return self.list(request, bucket, dict(urllib.parse.parse_qsl(query)))
        if key in self.denied:
            return self.fail(request, 403, "AccessDenied")
        if key in self.sends_elsewhere:
            with self.lock:
                self.requests.append((request.path, request.headers.get("Range"), dict(request.headers)))
            return self.reply(request, 302, {"Location": self.sends_elsewhere[key]})
        if key not in self.buckets[bucket] and not self.faults:
            return self.fail(request, 404, "NoSuchKey")
        request.path = "/" + quoted(f"{bucket}/{key}", "/")
        return super().answer(request)

    def list(self, request, bucket, query):
        assert query["list-type"] == "2" and query["delimiter"] == "/"
        prefix = query.get("prefix", "")
        entries = sorted({(prefix + rest.partition("/")[0] + "/", True) if "/" in rest else (key, False)
                          for key in self.buckets[bucket] if key.startswith(prefix) for rest in [key[len(prefix):]]})
        begin = int(query.get("continuation-token", "t/0").removeprefix("t/"))
        shown = entries[begin:begin + self.page_size]
        text = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        text += f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
        if begin + len(shown) < len(entries):
            text += f"<IsTruncated>true</IsTruncated><NextContinuationToken>t/{begin + len(shown)}</NextContinuationToken>"
        for name, is_folder in shown:
            text += (f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" if is_folder else
                     f"<Contents><Key>{escape(name)}</Key><Size>{len(self.buckets[bucket][name])}</Size></Contents>")
        data = (text + "</ListBucketResult>").encode()
        with self.lock:
            self.requests.append((request.path, None, dict(request.headers)))
        request.send_response(200)
        self.end_headers(request, {"Content-Length": str(len(data))})
        request.wfile.write(data)


class KeyServices(WebServer):
    """The token service, the service for containers and the metadata service. Each gives `keys`: (access, secret, token)."""

    def __init__(self):
        self.keys = (ACCESS, SECRET, "session")
        self.expires = "2099-01-01T00:00:00Z"
        self.refuses = None  # a code of an error
        super().__init__()

    def answer(self, request):
        path, _, query = request.path.partition("?")
        with self.lock:
            self.requests.append((f"{request.command} {path}", query, dict(request.headers)))
        if self.refuses:
            return self.give(request, 400, f"<ErrorResponse><Error><Code>{self.refuses}</Code></Error></ErrorResponse>")
        access, secret, token = self.keys
        as_json = json.dumps({"Code": "Success", "AccessKeyId": access, "SecretAccessKey": secret, "Token": token,
                              "Expiration": self.expires})
        if path == "/" and "AssumeRoleWithWebIdentity" in query:
            return self.give(request, 200, f"<R><AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{escape(secret)}</SecretAccessKey>"
                             f"<SessionToken>{token}</SessionToken><Expiration>{self.expires}</Expiration></R>")
        if path == "/container":
            return self.give(request, 200, as_json)
        if f"{request.command} {path}" == "PUT /latest/api/token":
            return self.give(request, 200, "imds-token")
        if request.headers.get("X-aws-ec2-metadata-token") != "imds-token":
            return self.give(request, 401, "")
        roles = "/latest/meta-data/iam/security-credentials/"
        return self.give(request, *{roles: (200, "role-1"), roles + "role-1": (200, as_json)}.get(path, (404, "")))

    def give(self, request, status, text):
        request.send_response(status)
        self.end_headers(request, {"Content-Length": str(len(text.encode()))})
        request.wfile.write(text.encode())


@contextlib.contextmanager
def closed_at_the_end(server):
    try:
        yield server
    finally:
        server.close()
