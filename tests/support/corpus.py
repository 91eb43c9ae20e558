"""Writes one .safetensors file per rule of the format: hostile, surprising and plain ones, with a manifest.

    python3 corpus.py DIRECTORY

manifest.json lists for each file what we say of it ("ok" or the name of our error code), what the reference
library says ("ok" or a part of its message), the names of its tensors where we accept it, and why it is there.
The same files go through the parser (tests/reference) and through a mount (tests/mount).
"""

import json
import struct
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The reference's messages for the checks of the format (safetensors 0.8, Display of SafeTensorError).
REFERENCE = {
    "HeaderTooSmall": "header too small",
    "HeaderTooLarge": "header too large",
    "InvalidHeaderLength": "invalid header length",
    "InvalidHeader": "invalid UTF-8 in header",
    "InvalidHeaderDeserialization": "invalid JSON in header",
    "InvalidOffset": "invalid offset for tensor",
    "ValidationOverflow": "overflow computing buffer size from shape and/or element type",
    "MisalignedSlice": "The slice is slicing for subbytes dtypes",
    "TensorInvalidInfo": "invalid shape, data type, or offset for tensor",
    "MetadataIncompleteBuffer": "incomplete metadata, file not fully covered",
}

DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


@dataclass
class Case:
    file: str
    content: bytes
    ours: str
    reference: str
    why: str
    tensors: list = field(default_factory=list)


def archive(header, data=b"", length=None):
    """The bytes of a file with that header, given as text or bytes, and that data."""
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype="U8", shape=(1,), offsets=(0, 1)):
    """The JSON of one tensor."""
    return json.dumps({"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}, separators=(",", ":"))


def one(value, data=b"\x01"):
    """A file whose only tensor, a, has that JSON."""
    return archive('{"a":%s}' % value, data)


class Corpus:
    def __init__(self):
        self.cases = []

    def accept(self, name, content, why, tensors=("a",)):
        self.cases.append(Case(f"{name}.safetensors", content, "ok", "ok", why, list(tensors)))

    def reject(self, name, code, content, why):
        self.cases.append(Case(f"{name}.safetensors", content, code, REFERENCE[code], why))

    def stricter(self, name, code, content, why):
        """The reference accepts it, and we don't."""
        self.cases.append(Case(f"{name}.safetensors", content, code, "ok", why))


def add_length_cases(corpus):
    good = one(entry())
    for size in (0, 1, 7):
        corpus.reject(f"short_{size}", "HeaderTooSmall", good[:size], f"a file of {size} bytes")
    corpus.reject("length_over_limit", "HeaderTooLarge", archive(b"{}", length=100_000_001), "one byte over the limit")
    corpus.reject("length_2_64", "HeaderTooLarge", archive(b"{}", length=2**64 - 1), "8 + N overflows")
    corpus.reject("length_2_63", "HeaderTooLarge", archive(b"{}", length=2**63), "N is negative if signed")
    corpus.reject("length_at_limit_cut", "InvalidHeaderLength", archive(b"{}", length=100_000_000), "allowed, not there")
    corpus.reject("length_one_too_long", "InvalidHeaderLength", archive(b"{}", length=3), "ends one byte early")
    corpus.reject("length_only", "InvalidHeaderLength", struct.pack("<Q", 2), "eight bytes and nothing else")
    corpus.reject("length_big_endian", "HeaderTooLarge", struct.pack(">Q", 2) + b"{}", "the wrong byte order")
    corpus.reject("length_zero", "InvalidHeaderDeserialization", struct.pack("<Q", 0), "N = 0: no JSON")
    corpus.reject("text_file", "HeaderTooLarge", b"not a model, just some text\n", "what a mistyped path may hold")


def add_utf8_cases(corpus):
    for name, text in {
        "stray_continuation": b"\x80", "overlong": b"\xc0\xaf", "surrogate": b"\xed\xa0\x80", "cut": b"\xe2\x82",
        "beyond_unicode": b"\xf4\x90\x80\x80", "ff": b"\xff", "overlong_3": b"\xe0\x80\xaf",
    }.items():
        content = archive(b'{"' + text + b'":' + entry().encode() + b"}", b"\x01")
        corpus.reject(f"utf8_{name}", "InvalidHeader", content, f"a name with the bytes {text.hex()}")
    corpus.reject("utf8_behind_syntax_error", "InvalidHeader", archive(b'{"a" \xff}'), "encoding goes before grammar")
    corpus.reject("utf8_outside_string", "InvalidHeader", archive(b"{}\xff"), "behind the JSON")
    corpus.reject("utf8_cut_at_end", "InvalidHeader", archive(b"{}\xe2\x82"), "the header ends inside a character")


def add_json_cases(corpus):
    def bad(name, header, why, data=b"\x01"):
        corpus.reject(name, "InvalidHeaderDeserialization", archive(header, data), why)

    tensor = entry()
    bad("json_empty", " ", "white space only", b"")
    bad("json_bom", b"\xef\xbb\xbf{}", "a byte order mark", b"")
    bad("json_comment", '{/* */"a":%s}' % tensor, "a comment")
    bad("json_line_comment", '{"a":%s} // a' % tensor, "a comment behind")
    bad("json_trailing_comma", '{"a":%s,}' % tensor, "a comma before the brace")
    bad("json_trailing_comma_shape", '{"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}', "a comma in an array")
    bad("json_leading_comma", '{,"a":%s}' % tensor, "a comma behind the brace")
    bad("json_nul_padding", ('{"a":%s}' % tensor).encode() + b"\0\0\0", "padded with NUL")
    bad("json_nul_inside", b'{"a":' + tensor.encode() + b',\0"b":1}', "a NUL between tokens")
    bad("json_control_character", '{"a\n":%s}' % tensor, "a raw line feed in a name")
    bad("json_raw_nul_in_name", b'{"a\0":' + tensor.encode() + b"}", "a raw NUL in a name")
    bad("json_lone_high_surrogate", '{"\\ud800":%s}' % tensor, "half of a pair")
    bad("json_lone_low_surrogate", '{"\\udc00":%s}' % tensor, "the other half")
    bad("json_high_surrogate_pair", '{"\\ud800\\ud800":%s}' % tensor, "two first halves")
    bad("json_bad_escape", '{"\\x41":%s}' % tensor, "an escape that JSON does not have")
    bad("json_short_unicode_escape", '{"\\u12":%s}' % tensor, "two digits")
    bad("json_single_quotes", "{'a':%s}" % tensor, "single quotes")
    bad("json_two_documents", '{"a":%s}{}' % tensor, "something behind the end")
    bad("json_unclosed", '{"a":%s' % tensor, "no closing brace")
    bad("json_unclosed_string", '{"a', "no closing quote")
    bad("json_vertical_tab", "{\v}", "white space that JSON does not have", b"")
    bad("json_nbsp", "{\u00a0}", "white space of Unicode", b"")
    bad("json_nan", '{"a":%s}' % tensor.replace("[1]", "[NaN]"), "NaN")
    for name, root in {"array": "[]", "null": "null", "string": '"a"', "number": "1", "true": "true"}.items():
        bad(f"root_{name}", root, "the root is no object", b"")
    for name, value in {"null": "null", "string": '"F32"', "number": "1", "empty": "{}", "empty_array": "[]"}.items():
        bad(f"tensor_{name}", '{"a":%s}' % value, "a tensor that is no object with its three fields")
    for field_name in ("dtype", "shape", "data_offsets"):
        value = json.loads(tensor)
        del value[field_name]
        bad(f"field_missing_{field_name}", json.dumps({"a": value}), "a field is missing")
        bad(f"field_null_{field_name}", json.dumps({"a": {**value, field_name: None}}), "a field is null")
        twice = tensor[:-1] + "," + json.dumps({field_name: json.loads(tensor)[field_name]})[1:]
        bad(f"field_twice_{field_name}", '{"a":%s}' % twice, "the same field twice")


def add_number_cases(corpus):
    numbers = {
        "float": "1.0", "exponent": "1e0", "negative": "-1", "minus_zero": "-0", "leading_zero": "01", "plus": "+1",
        "hex": "0x1", "string": '"1"', "null": "null", "boolean": "true", "array": "[1]", "over_u64": str(2**64),
        "huge": "9" * 400, "infinite": "1e999", "dot": "1.", "minus": "-", "underscore": "1_0",
    }
    for name, number in numbers.items():
        for where, value in {
            "shape": '{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}' % number,
            "begin": '{"dtype":"U8","shape":[1],"data_offsets":[%s,1]}' % number,
            "end": '{"dtype":"U8","shape":[1],"data_offsets":[0,%s]}' % number,
        }.items():
            corpus.reject(f"number_{where}_{name}", "InvalidHeaderDeserialization", one(value), f"{number[:20]} in {where}")
    for count, offsets in {0: "[]", 1: "[0]", 3: "[0,1,2]"}.items():
        value = '{"dtype":"U8","shape":[1],"data_offsets":%s}' % offsets
        corpus.reject(f"offsets_{count}", "InvalidHeaderDeserialization", one(value), f"{count} offsets, not two")
    for name, offsets in {"object": '{"begin":0,"end":1}', "number": "0", "string": '"0,1"'}.items():
        value = '{"dtype":"U8","shape":[1],"data_offsets":%s}' % offsets
        corpus.reject(f"offsets_{name}", "InvalidHeaderDeserialization", one(value), "offsets that are no array")
    for name, shape in {"object": "{}", "number": "1", "string": '"[1]"'}.items():
        value = '{"dtype":"U8","shape":%s,"data_offsets":[0,1]}' % shape
        corpus.reject(f"shape_{name}", "InvalidHeaderDeserialization", one(value), "a shape that is no array")


def add_dtype_cases(corpus):
    for dtype, bits in DTYPES.items():
        size = 8 * bits // 8
        corpus.accept(f"dtype_{dtype}", one(entry(dtype, (8,), (0, size)), bytes(size)), "eight elements")
    for name, dtype in {
        "lower_case": '"f32"', "unknown": '"F128"', "empty": '""', "space": '"U8 "', "number": "4", "array": '["U8"]',
    }.items():
        value = '{"dtype":%s,"shape":[1],"data_offsets":[0,1]}' % dtype
        corpus.reject(f"dtype_{name}", "InvalidHeaderDeserialization", one(value), f"dtype {dtype}")
    corpus.accept("dtype_escaped", one(entry().replace("U8", "\\u00558")), "the dtype's name, escaped")
    corpus.stricter("dtype_map", "InvalidHeaderDeserialization", one(entry().replace('"U8"', '{"U8":null}')),
                    "serde's other form of an enumeration")


def add_metadata_cases(corpus):
    def with_metadata(metadata, tail=""):
        return archive('{"__metadata__":%s,"a":%s%s}' % (metadata, entry(), tail), b"\x01")

    corpus.accept("metadata", with_metadata('{"format":"pt"}'), "as usual")
    corpus.accept("metadata_null", with_metadata("null"), "null")
    corpus.accept("metadata_empty", with_metadata("{}"), "no entry")
    corpus.accept("metadata_last", archive('{"a":%s,"__metadata__":{"k":"v"}}' % entry(), b"\x01"), "at the end")
    corpus.accept("metadata_only", archive('{"__metadata__":{"k":"v"}}'), "no tensors", [])
    corpus.accept("metadata_escaped_key", archive('{"__meta\\u0064ata__":{"k":"v"},"a":%s}' % entry(), b"\x01"),
                  "the key is compared unescaped")
    corpus.accept("metadata_odd_text", with_metadata('{"":"","a\\nb":"\\u0000\\ud83d\\ude00"}'), "empty, control, emoji")
    for name, value in {
        "number": "1", "null": "null", "object": "{}", "array": "[]", "boolean": "true", "negative": "-1", "float": "1.5",
    }.items():
        corpus.reject(f"metadata_value_{name}", "InvalidHeaderDeserialization", with_metadata('{"k":%s}' % value),
                      "a value that is no string")
    for name, value in {"string": '"x"', "array": "[]", "number": "1", "boolean": "false"}.items():
        corpus.reject(f"metadata_{name}", "InvalidHeaderDeserialization", with_metadata(value), "not an object")
    corpus.reject("metadata_twice", "InvalidHeaderDeserialization", with_metadata("{}", ',"__metadata__":{}'), "twice")
    corpus.reject("metadata_null_twice", "InvalidHeaderDeserialization", with_metadata("null", ',"__metadata__":null'),
                  "twice, though null")
    corpus.accept("metadata_duplicate_key", with_metadata('{"k":"1","k":"2"}'), "one key twice: the last value counts")
    corpus.accept("metadata_duplicate_escaped", with_metadata('{"k":"1","\\u006b":"2"}'), "the same, escaped")


def add_offset_cases(corpus):
    def two(a, b, data):
        return archive('{"a":%s,"b":%s}' % (entry("U8", (a[1] - a[0],) if a[1] >= a[0] else (1,), a),
                                            entry("U8", (b[1] - b[0],) if b[1] >= b[0] else (1,), b)), data)

    def bad(name, content, why):
        corpus.reject(name, "InvalidOffset", content, why)

    bad("offset_hole_first", one(entry(offsets=(1, 2)), bytes(2)), "begins at 1")
    bad("offset_hole", two((0, 1), (2, 3), bytes(3)), "a hole between")
    bad("offset_overlap", two((0, 2), (1, 3), bytes(3)), "two tensors overlap")
    bad("offset_same_range", two((0, 1), (0, 1), bytes(1)), "two names for one range")
    bad("offset_reversed", one(entry(offsets=(1, 0)), bytes(1)), "begins at 1 and ends at 0")
    bad("offset_reversed_at_running", two((0, 2), (2, 1), bytes(2)), "the second ends before it begins")
    bad("offset_max", one(entry(offsets=(2**64 - 1, 2**64 - 1)), bytes(1)), "the greatest offsets")
    bad("offset_empty_elsewhere", two((0, 1), (5, 5), bytes(1)), "an empty tensor behind the data")
    bad("offset_empty_inside", archive('{"a":%s,"b":%s}' % (entry("U8", (4,), (0, 4)), entry("U8", (0,), (2, 2))), bytes(4)),
        "an empty tensor inside another")
    bad("offset_before_overflow", one(entry("U8", (2**63, 4), (1, 2)), bytes(2)), "check 6 goes before check 7")
    corpus.accept("offset_empty_tensors", archive('{"a":%s,"b":%s,"c":%s}' % (
        entry("U8", (0,), (0, 0)), entry("U8", (1,), (0, 1)), entry("F64", (3, 0), (1, 1))), b"\x01"),
        "empty ones at the running offset", ["a", "b", "c"])
    corpus.accept("offset_any_order", archive('{"b":%s,"a":%s}' % (entry("U8", (1,), (1, 2)), entry("U8", (1,), (0, 1))),
                                              b"\x01\x02"), "listed in another order", ["a", "b"])
    corpus.accept("offset_unaligned", archive('{"a":%s,"b":%s}' % (entry("U8", (1,), (0, 1)), entry("F64", (1,), (1, 9))),
                                              bytes(9)), "any alignment", ["a", "b"])


def add_size_cases(corpus):
    def bad(name, code, dtype, shape, offsets, why):
        corpus.reject(name, code, one(entry(dtype, shape, offsets), bytes(max(0, offsets[1]))), why)

    bad("overflow_shape", "ValidationOverflow", "U8", (2**63, 2), (0, 0), "the product of the shape")
    bad("overflow_shape_zero_last", "ValidationOverflow", "U8", (2**63, 2, 0), (0, 0), "a zero comes too late")
    bad("overflow_bits", "ValidationOverflow", "F64", (2**58,), (0, 0), "elements fit, bits don't")
    bad("overflow_bits_u8", "ValidationOverflow", "U8", (2**61,), (0, 0), "not even bytes")
    bad("misaligned_f4", "MisalignedSlice", "F4", (3,), (0, 1), "12 bits")
    bad("misaligned_f6", "MisalignedSlice", "F6_E2M3", (1,), (0, 1), "6 bits")
    bad("misaligned_f4_scalar", "MisalignedSlice", "F4", (), (0, 1), "4 bits")
    bad("size_short", "TensorInvalidInfo", "F32", (3,), (0, 8), "8 bytes for 12")
    bad("size_long", "TensorInvalidInfo", "U8", (1,), (0, 2), "2 bytes for 1")
    bad("size_empty_for_scalar", "TensorInvalidInfo", "U8", (), (0, 0), "a scalar has one element")
    bad("size_some_for_empty", "TensorInvalidInfo", "U8", (0,), (0, 1), "an empty tensor has none")
    corpus.reject("size_huge", "TensorInvalidInfo", one(entry("U8", (1,), (0, 2**64 - 1))), "the greatest range")
    corpus.accept("overflow_zero_first", one(entry("U8", (0, 2**63, 2), (0, 0)), b""), "from left to right, zero stays")
    corpus.reject("size_max_without_data", "MetadataIncompleteBuffer", one(entry("U8", (2**61 - 1,), (0, 2**61 - 1)), b""),
                  "the greatest size that passes")
    corpus.accept("scalar", one(entry("F32", (), (0, 4)), bytes(4)), "no dimensions")
    corpus.accept("rank_5000", one(entry("U8", (1,) * 5000)), "5,000 dimensions")
    corpus.reject("data_missing", "MetadataIncompleteBuffer", one(entry("U8", (4,), (0, 4)), bytes(3)), "one byte short")
    corpus.reject("data_left_over", "MetadataIncompleteBuffer", one(entry("U8", (4,), (0, 4)), bytes(5)), "one byte more")
    corpus.reject("data_without_tensors", "MetadataIncompleteBuffer", archive("{}", b"\0"), "data and no tensor")
    corpus.accept("empty_object", archive("{}"), "no tensors at all", [])


def add_surprises(corpus):
    corpus.accept("space_around", archive(' \t\r\n{"a":%s}\n\r\t ' % entry(), b"\x01"), "white space on both sides")
    corpus.accept("space_inside", archive('{ "a" :\n%s\t}' % entry().replace(",", " ,\r\n "), b"\x01"), "and inside")
    corpus.accept("space_64k", archive('{"a":%s}' % entry() + " " * 65536, b"\x01"), "64 KiB of padding")
    corpus.accept("space_2m_inside", archive('{"a":%s%s}' % ("\n" * (2 << 20), entry()), b"\x01"), "2 MiB between tokens")
    corpus.reject("space_2m_then_error", "InvalidHeaderDeserialization", archive("{" + "\n" * (2 << 20) + "x", b""),
                  "and a stray letter behind them")
    corpus.accept("keys_in_any_order", one('{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}'), "the fields' order")
    corpus.accept("keys_escaped", one(entry().replace("dtype", "d\\u0074ype")), "a field's name, escaped")
    extra = '{"x":[{"y":null},-0,-1.5e-7,"\\n",true],"dtype":"U8","z":{"dtype":1},"shape":[1],"data_offsets":[0,1],"dtypes":2}'
    corpus.accept("fields_unknown", one(extra), "unknown fields of every kind")
    corpus.accept("field_unknown_twice", one('{"x":1,"x":2,"dtype":"U8","shape":[1],"data_offsets":[0,1]}'), "one twice")
    corpus.accept("field_unknown_big", one('{"x":%d,"dtype":"U8","shape":[1],"data_offsets":[0,1]}' % 10**300), "10^300")
    corpus.reject("field_unknown_infinite", "InvalidHeaderDeserialization",
                  one('{"x":1e999,"dtype":"U8","shape":[1],"data_offsets":[0,1]}'), "no double")
    corpus.stricter("entry_array", "InvalidHeaderDeserialization", one('["U8",[1],[0,1]]'), "serde's array form of a struct")
    twice = '{"a":%s,"a":%s}'
    corpus.stricter("duplicate_same", "DuplicateKey", archive(twice % (entry(), entry()), b"\x01"), "twice the same")
    corpus.stricter("duplicate_other_dtype", "DuplicateKey", archive(twice % (entry(), entry("I8")), b"\x01"), "the last wins")
    corpus.stricter("duplicate_escaped", "DuplicateKey", archive('{"a":%s,"\\u0061":%s}' % (entry(), entry()), b"\x01"),
                    "one name in two spellings")


def add_names(corpus):
    names = {
        "empty": "", "dot": ".", "dot_dot": "..", "slash": "a/b", "root": "/", "line_feed": "a\nb", "nul": "a\0b",
        "long": "n" * 300, "very_long": "n" * 100_000, "unicode": "größe.权重.😀", "long_unicode": "权" * 200,
        "quote": 'a"b\\c', "del": "a\x7fb", "percent": "%2F", "views": ".safetensors", "space": " ", "dash": "-rf",
        "bidi": "a\u202eb", "noncharacter": "\uffff", "combining": "e\u0301", "metadata_like": "__metadata__ ",
    }
    for label, name in names.items():
        corpus.accept(f"name_{label}", archive('{%s:%s}' % (json.dumps(name, ensure_ascii=label != "unicode"), entry()),
                                               b"\x01"), f"the name {name[:20]!r}", [name])
    many = {name: json.loads(entry("U8", (1,), (i, i + 1))) for i, name in enumerate(names.values())}
    corpus.accept("names_all", archive(json.dumps(many), bytes(range(len(many)))), "all odd names in one file", list(many))


def add_depth(corpus):
    def nested(levels):
        # the root and the tensor are two levels themselves
        inner = "[" * (levels - 2) + "]" * (levels - 2)
        return one('{"x":%s,"dtype":"U8","shape":[1],"data_offsets":[0,1]}' % inner)

    corpus.accept("depth_127", nested(127), "as deep as the reference reads")
    corpus.reject("depth_128", "InvalidHeaderDeserialization", nested(128), "one deeper")
    corpus.reject("depth_100000", "InvalidHeaderDeserialization", nested(100_000), "must not take the stack")
    corpus.reject("depth_open", "InvalidHeaderDeserialization", archive("[" * 1_000_000), "brackets only")
    corpus.reject("depth_objects", "InvalidHeaderDeserialization", archive('{"a":' * 200_000), "braces only")


def cases():
    corpus = Corpus()
    corpus.accept("plain", one(entry()), "one tensor of one byte")
    for add in (add_length_cases, add_utf8_cases, add_json_cases, add_number_cases, add_dtype_cases, add_metadata_cases,
                add_offset_cases, add_size_cases, add_surprises, add_names, add_depth):
        add(corpus)
    assert len({case.file for case in corpus.cases}) == len(corpus.cases), "two cases of one name"
    return corpus.cases


def write(directory):
    """Writes every case and manifest.json; returns the manifest."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    manifest = []
    for case in cases():
        (directory / case.file).write_bytes(case.content)
        row = asdict(case)
        del row["content"]
        manifest.append(row)
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
