# A small consumer of DLPack in ctypes. It reads all fields of a capsule, and takes the tensor or leaves it.
import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

# NumPy before 2.2 takes any memory read-only, also its own.
TAKES_WRITABLE = np.from_dlpack(np.zeros(1)).flags.writeable


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Unversioned(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", Tensor)]


api = ctypes.pythonapi
api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = c_char_p, [ctypes.py_object]
api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]


class Taken:
    """Takes the tensor out of a capsule, which is used up. The caller must call free() once."""

    NAMES = {b"dltensor": (Unversioned, b"used_dltensor"), b"dltensor_versioned": (Versioned, b"used_dltensor_versioned")}

    def __init__(self, capsule):
        name = api.PyCapsule_GetName(capsule)
        layout, used = self.NAMES[name]
        self.address = api.PyCapsule_GetPointer(capsule, name)
        self.managed = layout.from_address(self.address)
        # The new name must live as long as the capsule does: it is a constant of this class.
        api.PyCapsule_SetName(capsule, used)
        tensor = self.managed.tensor
        self.is_versioned = layout is Versioned
        self.flags = getattr(self.managed, "flags", None)
        self.version = (self.managed.major, self.managed.minor) if self.is_versioned else None
        self.data, self.device = tensor.data, (tensor.device_type, tensor.device_id)
        self.type = (tensor.code, tensor.bits, tensor.lanes)
        self.shape, self.strides = tensor.shape[:tensor.ndim], tensor.strides[:tensor.ndim]
        assert tensor.byte_offset == 0

    def bytes(self, count):
        return ctypes.string_at(self.data, count)

    def free(self):
        # CDLL lets go of the interpreter's lock: freeing must not need it.
        ctypes.CFUNCTYPE(None, c_void_p)(self.managed.deleter)(self.address)
