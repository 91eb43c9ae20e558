# A directory as the kernel gives it to libc: d_type, inode numbers and positions, which Python hides.
import ctypes
import os

DT_DIR, DT_REG = 4, 8


class _Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
                ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir.restype = ctypes.POINTER(_Dirent)
_libc.readdir.argtypes = [ctypes.c_void_p]
_libc.telldir.restype = ctypes.c_long
_libc.telldir.argtypes = [ctypes.c_void_p]
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
_libc.rewinddir.argtypes = [ctypes.c_void_p]
_libc.closedir.argtypes = [ctypes.c_void_p]


class Directory:
    def __init__(self, path):
        self.stream = _libc.opendir(os.fsencode(path))
        if not self.stream:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _libc.closedir(self.stream)

    def next(self):
        """(name, inode number, type) or None at the end."""
        entry = _libc.readdir(self.stream)
        if not entry:
            return None
        return os.fsdecode(entry.contents.name), entry.contents.ino, entry.contents.type

    def rest(self):
        found = []
        while (entry := self.next()) is not None:
            found.append(entry)
        return found

    def tell(self):
        return _libc.telldir(self.stream)

    def seek(self, position):
        _libc.seekdir(self.stream, position)

    def rewind(self):
        _libc.rewinddir(self.stream)
