/* clang-format off */
/* libstfs: the tensors of .safetensors archives for any language that can call C.
 *
 *     stfs_error error;
 *     stfs_model *model = stfs_open("model.safetensors", NULL, &error);
 *     uint64_t at;
 *     if (!model || stfs_find(model, "lm_head.weight", 14, &at, &error) != 0) {
 *       puts(error.message);
 *       exit(1);
 *     }
 *     stfs_tensor *tensor = stfs_tensor_open(model, at, &error);
 *     const void *data = stfs_tensor_data(tensor, &error);    // in the archive's map: nothing is copied
 *     ...
 *     stfs_tensor_close(tensor);
 *     stfs_close(model);
 *
 * UNITS. Sizes, offsets and strides are bytes, shapes are elements, outermost dimension first, times are
 * nanoseconds. Data are little-endian and row-major, as in the archive. Text is UTF-8; a stfs_text has a size
 * and no NUL at its end, for a tensor's name may hold any character.
 *
 * OWNERSHIP. What a function returns as a pointer to a handle (stfs_model, stfs_tensor, stfs_plan,
 * stfs_upload, stfs_resident, stfs_lease, stfs_device_list) is the caller's, who closes it once with the
 * function of that type; NULL is let through. All else that is pointed to belongs to the handle that was
 * asked and goes with it. Handles keep what they need: a tensor's data stay until stfs_tensor_close(),
 * whether its model, plan, resident or lease is closed or not.
 *
 * THREADS. Any number of threads may use one handle at a time, but for its closing, which must be the last
 * call.
 *
 * ERRORS. A function fails by returning NULL or -1, as its result is a pointer or an int, and then fills
 * *error, which is the caller's and may be NULL. Nothing is printed, no signal handler is installed, errno
 * means nothing.
 *
 * MAPPED DATA (STFS_MAPPED) are the archive's pages and no copy. So they show what others write into it,
 * whole commits and halves of them; stfs_generation() tells of changes. And where somebody cuts the file
 * short, or its disk fails, touching a page that is gone raises SIGBUS in the thread that does: who cannot
 * trust the file calls stfs_tensor_read() or stfs_tensor_copy(), which fail with EIO instead.
 *
 * VERSIONS. A function keeps its meaning while the library is libstfs.so.0. Structures that may grow begin
 * with struct_bytes, which the caller sets to sizeof: fields that the caller does not know are not touched,
 * fields that the library does not know must be 0. */
/* clang-format on */
#ifndef STFS_H
#define STFS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define STFS_API __attribute__((visibility("default")))
#else
#define STFS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stfs_model stfs_model;
typedef struct stfs_tensor stfs_tensor;

typedef struct stfs_text {
  const char* data; /* no NUL at its end */
  size_t size_bytes;
} stfs_text;

/* The version of the library, "0.1.0". */
STFS_API const char* stfs_version(void);

/* --- errors --- */

typedef enum stfs_code {
  STFS_OK = 0,
  /* The file is no valid archive; named as the reference library names its checks. */
  STFS_HEADER_TOO_SMALL = 1,
  STFS_HEADER_TOO_LARGE = 2,
  STFS_INVALID_HEADER_LENGTH = 3,
  STFS_INVALID_HEADER = 4,
  STFS_INVALID_HEADER_DESERIALIZATION = 5,
  STFS_INVALID_OFFSET = 6,
  STFS_VALIDATION_OVERFLOW = 7,
  STFS_MISALIGNED_SLICE = 8,
  STFS_TENSOR_INVALID_INFO = 9,
  STFS_METADATA_INCOMPLETE_BUFFER = 10,
  STFS_DUPLICATE_KEY = 11,
  /* Anything else. */
  STFS_SYSTEM = 12,           /* a system call or a device failed: errno_value says how */
  STFS_INVALID_ARGUMENT = 13, /* what was asked for makes no sense */
  STFS_NOT_FOUND = 14,        /* no such file or tensor */
  STFS_READ_ONLY = 15,
  STFS_WRONG_SIZE = 16,
  STFS_ARCHIVE_CHANGED = 17, /* the file is no longer the one that was opened */
  STFS_ARCHIVE_CUT = 18,     /* it ends before the bytes that its header promises */
  STFS_BUSY = 19,
  STFS_COMMIT_UNKNOWN = 20,
  STFS_OUT_OF_MEMORY = 21
} stfs_code;

typedef struct stfs_error {
  int32_t code;        /* stfs_code */
  int32_t errno_value; /* what a system call would have set; 0 only with STFS_OK */
  char message[4088];  /* one sentence that begins with the path; ends in NUL, too long a one is cut */
} stfs_error;

/* "ArchiveCut"; "Unknown" for what is no code. Static. */
STFS_API const char* stfs_code_name(int32_t code);

/* --- models --- */

typedef enum stfs_io {
  STFS_IO_AUTO = 0, /* map, but read on stores where a map is no good (NFS, FUSE, ...) */
  STFS_IO_MMAP = 1,
  STFS_IO_PREAD = 2
} stfs_io;

typedef struct stfs_open_options {
  size_t struct_bytes;
  int32_t io;        /* stfs_io */
  int32_t is_strict; /* 1: refuse a model whose index and shards disagree */
  /* 1: hand out a map that may be written to by mistake. Without it that is a SIGSEGV; with it, what is
   * written stays in this process, where all tensors of this model have it: for those who hand data on to
   * libraries that know no read-only memory. Where such a map can't be had, it is the ordinary one. */
  int32_t is_forgiving;
} stfs_open_options;

/* Opens an archive, a model's index, a directory with one index or else one archive, a mount of safetensorsfs
 * (its bytes are then read from the archive behind it, not through the mount), or the file of a tensor in a
 * mount: a model of that one. A view in .safetensors/ is EINVAL, but for archive.safetensors. Reads headers
 * alone. What a program that died had committed is read out of its journal; see stfs_not_shown(). options:
 * may be NULL. */
STFS_API stfs_model* stfs_open(const char* path, const stfs_open_options* options, stfs_error* error);
STFS_API void stfs_close(stfs_model* model);

STFS_API uint64_t stfs_tensor_count(const stfs_model* model);
/* The absolute path of the archive or of the index. */
STFS_API const char* stfs_path(const stfs_model* model);
/* Position of the tensor of that exact name. STFS_NOT_FOUND suggests near ones, which takes a look at all of
 * them: not where error is NULL. */
STFS_API int stfs_find(const stfs_model* model, const char* name, size_t name_bytes, uint64_t* position,
                       stfs_error* error);

/* Pairs of __metadata__, in the order of the header; of all shards, each key once. */
STFS_API uint64_t stfs_metadata_count(const stfs_model* model);
STFS_API int stfs_metadata_entry(const stfs_model* model, uint64_t entry, stfs_text* key, stfs_text* value,
                                 stfs_error* error);

/* Of the journals beside the model's archives those that may hold a newer commit which is not shown, as they
 * were found by stfs_open(): another user's, of a newer version, damaged. One sentence for each, which begins
 * with the journal's path and says what can be done. */
STFS_API uint64_t stfs_not_shown_count(const stfs_model* model);
STFS_API int stfs_not_shown(const stfs_model* model, uint64_t entry, stfs_text* why, stfs_error* error);

/* When an archive of the model was last written to, in nanoseconds since 1970: another number after a change.
 */
STFS_API int stfs_generation(const stfs_model* model, uint64_t* generation, stfs_error* error);
/* Whether the files that were opened are still those that lie at their paths, and the headers still those
 * that were read: -1 with ESTALE, or EIO where one was cut short. Changed bytes of tensors are no failure. */
STFS_API int stfs_check_current(const stfs_model* model, stfs_error* error);

/* --- tensors --- */

/* In the order of the format's own list. */
typedef enum stfs_dtype {
  STFS_BOOL = 0,
  STFS_F4 = 1,
  STFS_F6_E2M3 = 2,
  STFS_F6_E3M2 = 3,
  STFS_U8 = 4,
  STFS_I8 = 5,
  STFS_F8_E5M2 = 6,
  STFS_F8_E4M3 = 7,
  STFS_F8_E8M0 = 8,
  STFS_F8_E4M3FNUZ = 9,
  STFS_F8_E5M2FNUZ = 10,
  STFS_I16 = 11,
  STFS_U16 = 12,
  STFS_F16 = 13,
  STFS_BF16 = 14,
  STFS_I32 = 15,
  STFS_U32 = 16,
  STFS_F32 = 17,
  STFS_C64 = 18,
  STFS_F64 = 19,
  STFS_I64 = 20,
  STFS_U64 = 21
} stfs_dtype;

/* "BF16"; NULL for what is no dtype. Static. */
STFS_API const char* stfs_dtype_name(int32_t dtype);
/* Of one element: 4, 6, 8, 16, 32 or 64; 0 for what is no dtype. */
STFS_API uint32_t stfs_dtype_bits(int32_t dtype);

typedef enum stfs_device_kind { STFS_CPU = 0, STFS_CUDA = 1 } stfs_device_kind;

typedef enum stfs_tensor_flags {
  STFS_MAPPED = 1,  /* the data are an archive's pages: see MAPPED DATA above */
  STFS_WRITABLE = 2 /* they may be written to, which changes no archive */
} stfs_tensor_flags;

typedef struct stfs_tensor_info {
  size_t struct_bytes; /* the only field that the caller sets */
  stfs_text name;
  int32_t dtype; /* stfs_dtype */
  uint32_t rank;
  const uint64_t* shape;
  /* From one element to the next along each dimension; may be negative. NULL: packed, row-major. */
  const int64_t* strides_bytes;
  uint64_t size_bytes; /* of its elements, packed */
  const char* archive; /* the file that holds it */
  uint64_t offset;     /* of its first element in that file */
  int32_t device_kind; /* stfs_device_kind */
  int32_t device_index;
  uint32_t flags; /* stfs_tensor_flags */
} stfs_tensor_info;

/* Of the tensor at a position below stfs_tensor_count(): in the order of the archives, and of their bytes.
 * What info points to lives as long as the model. */
STFS_API int stfs_describe(const stfs_model* model, uint64_t position, stfs_tensor_info* info,
                           stfs_error* error);

/* Reads nothing yet. */
STFS_API stfs_tensor* stfs_tensor_open(const stfs_model* model, uint64_t position, stfs_error* error);
/* Some of the elements: what NumPy has between the brackets, "0:10, :, -1". Shares the data with `tensor`,
 * with strides; what has no address (a store that is read and not mapped, elements of less than a byte apart)
 * is gathered by the first stfs_tensor_data(). */
STFS_API stfs_tensor* stfs_tensor_slice(const stfs_tensor* tensor, const char* slice, stfs_error* error);
STFS_API void stfs_tensor_close(stfs_tensor* tensor);
/* Another handle to the same data: each is closed for itself. */
STFS_API stfs_tensor* stfs_tensor_retain(const stfs_tensor* tensor, stfs_error* error);

/* What info points to lives as long as this handle. */
STFS_API int stfs_tensor_describe(const stfs_tensor* tensor, stfs_tensor_info* info, stfs_error* error);
/* Address of the first element, in memory of the tensor's device; valid until the handle is closed. Of a
 * mapped tensor nothing is read until it is touched, but it is looked whether the file still covers it (EIO).
 * Other tensors are read whole by the first call, into memory that the handle owns. Write to it only with
 * STFS_WRITABLE. */
STFS_API void* stfs_tensor_data(const stfs_tensor* tensor, stfs_error* error);
/* Copies a part of the tensor's packed bytes, also out of an archive that fails: EIO then, and what is in
 * `to` means nothing. Of a mapped tensor it reads the file and leaves the map alone. Not of a GPU's: ENOTSUP.
 */
STFS_API int stfs_tensor_read(const stfs_tensor* tensor, uint64_t offset, void* to, size_t size_bytes,
                              stfs_error* error);
/* The tensor in memory of its own, packed, STFS_WRITABLE. Not of a GPU's: ENOTSUP. */
STFS_API stfs_tensor* stfs_tensor_copy(const stfs_tensor* tensor, stfs_error* error);
/* The tensor in memory that may be written to and that is copied only where it is: a private map of the
 * archive, with no more than 4 KiB before and behind the tensor. What is written stays with this handle.
 * Copies at once where the tensor is smaller than 64 KiB, or not one run of bytes in a map. */
STFS_API stfs_tensor* stfs_tensor_private(const stfs_tensor* tensor, stfs_error* error);

/* --- devices --- */

typedef struct stfs_device_list stfs_device_list;

typedef struct stfs_device_info {
  size_t struct_bytes;     /* the only field that the caller sets */
  int32_t kind;            /* stfs_device_kind */
  int32_t index;           /* of a GPU, in the driver's order */
  const char* name;        /* "cpu", "cuda:0": how it is named below */
  const char* uuid;        /* of a GPU, "GPU-..."; else "" */
  const char* description; /* "NVIDIA H200", or the processor's name */
  uint64_t total_bytes;    /* of memory */
  uint64_t free_bytes;     /* UINT64_MAX: not known */
  const char* problem;     /* why nothing can be asked of this GPU; else "" */
} stfs_device_info;

/* What is there: the CPU first, always. May take seconds where a GPU's driver starts. */
STFS_API stfs_device_list* stfs_list_devices(stfs_error* error);
STFS_API void stfs_device_list_close(stfs_device_list* list);
STFS_API uint64_t stfs_device_count(const stfs_device_list* list);
/* What info points to lives as long as the list. */
STFS_API int stfs_device(const stfs_device_list* list, uint64_t position, stfs_device_info* info,
                         stfs_error* error);
/* One sentence for a person where there is no GPU; else "". */
STFS_API const char* stfs_why_no_cuda(const stfs_device_list* list);

/* --- uploads: tensors into the memory of devices --- */

typedef struct stfs_plan stfs_plan;
typedef struct stfs_upload stfs_upload;
typedef struct stfs_resident stfs_resident;

typedef struct stfs_plan_options {
  size_t struct_bytes;
  /* One of these two says where tensors go. A device is "cpu", "cuda:N" or "cuda:GPU-uuid"; none is a
   * default. */
  const char* devices; /* of all tensors; several, with commas: a replica on each, read once */
  const char* rules; /* lines "PATTERN DEVICE[,DEVICE...] [shard(DIMENSION,PART/PARTS)]", the first that fits
                        a name decides; '#' begins a comment. Names that none fits are left out. */
  /* Of tensors' names, as fnmatch(3), each with a slice at its end or without: "*.q_proj.weight[:128]". None:
   * all. */
  const char* const* patterns;
  size_t pattern_count;
  const char* dtype; /* convert every floating tensor to it: "BF16", "bf16", "F32", ...; NULL: none */
} stfs_plan_options;

/* What an upload will do. Opens the model's path anew, and reads headers alone. */
STFS_API stfs_plan* stfs_plan_make(const stfs_model* model, const stfs_plan_options* options,
                                   stfs_error* error);
STFS_API void stfs_plan_close(stfs_plan* plan);
/* Tensors, or parts of them, on devices: a replica counts for itself. In the order in which they are read. */
STFS_API uint64_t stfs_plan_count(const stfs_plan* plan);
/* As it will be on its device. What info points to lives as long as the plan. */
STFS_API int stfs_plan_describe(const stfs_plan* plan, uint64_t position, stfs_tensor_info* info,
                                stfs_error* error);
STFS_API uint64_t stfs_plan_read_bytes(const stfs_plan* plan);
STFS_API uint64_t stfs_plan_left_out_count(const stfs_plan* plan);
STFS_API int stfs_plan_left_out(const stfs_plan* plan, uint64_t position, stfs_text* name, stfs_error* error);

typedef struct stfs_upload_options {
  size_t struct_bytes;
  uint32_t readers;    /* threads; 0: one for each core, 8 at most */
  int32_t must_verify; /* 1: compare a digest of each tensor's bytes on the device with the archive's */
} stfs_upload_options;

/* Begins to move what the plan says, on threads of its own. What does not fit is said before a byte moves:
 * ENOMEM. The plan may be closed. options: may be NULL. */
STFS_API stfs_upload* stfs_start(const stfs_plan* plan, const stfs_upload_options* options,
                                 stfs_error* error);

typedef struct stfs_progress {
  size_t struct_bytes;  /* the only field that the caller sets */
  uint64_t done_bytes;  /* that have arrived */
  uint64_t total_bytes; /* to be read */
  int32_t is_done;      /* stfs_wait() will not wait; how it ended only that tells */
} stfs_progress;
STFS_API int stfs_poll(const stfs_upload* upload, stfs_progress* progress, stfs_error* error);
/* The rest is not read: stfs_wait() gives ECANCELED, if it was not done already. */
STFS_API void stfs_cancel(stfs_upload* upload);
/* Waits for the end; once for each upload. Nothing is kept on a device where it fails: ECANCELED, ESTALE
 * where an archive has changed since the plan, EIO, EBADMSG where a digest differs, the device's errors.
 * progress: may be NULL; called on this thread now and then, and once with all at the end; what is not 0
 * cancels. */
STFS_API stfs_resident* stfs_wait(stfs_upload* upload,
                                  int (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes),
                                  void* context, stfs_error* error);
/* Cancels what is still under way, and waits for its threads. */
STFS_API void stfs_upload_close(stfs_upload* upload);

typedef struct stfs_upload_report {
  size_t struct_bytes;     /* the only field that the caller sets */
  uint64_t duration_ns;    /* of moving the bytes alone */
  uint64_t read_bytes;     /* from archives */
  uint64_t cached_bytes;   /* of them in the page cache when it began */
  uint64_t overflow_count; /* elements that the new dtype could not hold */
  uint64_t verified_bytes;
} stfs_upload_report;

/* What has arrived, in the order of the plan. */
STFS_API uint64_t stfs_resident_count(const stfs_resident* resident);
/* A tensor in its device's memory: it keeps the memory of all that was uploaded to that device with it. Data
 * on a GPU have a CUDA device pointer for an address, and are complete: any stream may use them. */
STFS_API stfs_tensor* stfs_resident_tensor(const stfs_resident* resident, uint64_t position,
                                           stfs_error* error);
STFS_API int stfs_resident_report(const stfs_resident* resident, stfs_upload_report* report,
                                  stfs_error* error);
STFS_API void stfs_resident_close(stfs_resident* resident);

/* --- leases: tensors that `stfs serve` keeps in the memory of devices, mapped by this process --- */

typedef struct stfs_lease stfs_lease;

typedef struct stfs_attach_options {
  size_t struct_bytes;
  uint64_t patience_ns; /* how long a server that is still uploading is waited for; 0: 60 seconds */
} stfs_attach_options;

/* A lease of the newest generation that the server at that socket has. No byte is copied. The tensors are
 * read-only: writing to their data raises SIGSEGV on the CPU, and is an error of CUDA on a GPU.
 * ENOENT, ECONNREFUSED: nobody serves there; EACCES, EPERM: another user does; ETIMEDOUT: it is still
 * uploading; EBUSY: it has as many leases as it gives. options: may be NULL. */
STFS_API stfs_lease* stfs_attach(const char* socket, const stfs_attach_options* options, stfs_error* error);
/* The server counts the lease until the last of its tensors is closed, too. */
STFS_API void stfs_lease_close(stfs_lease* lease);

STFS_API uint64_t stfs_lease_count(const stfs_lease* lease);
/* In the order in which the tensors lie in their archives; a replica counts for itself. Its info names no
 * archive: "" and 0. */
STFS_API stfs_tensor* stfs_lease_tensor(const stfs_lease* lease, uint64_t position, stfs_error* error);
/* From 1 on, by one for each change of the archives that the server has uploaded. */
STFS_API uint64_t stfs_lease_generation(const stfs_lease* lease);
/* What the server serves: absolute paths. */
STFS_API uint64_t stfs_lease_source_count(const stfs_lease* lease);
STFS_API const char* stfs_lease_source(const stfs_lease* lease, uint64_t position); /* NULL: there is none */

/* For poll(2): readable when there is news. Belongs to the lease. -1 once the server has gone. */
STFS_API int stfs_lease_descriptor(const stfs_lease* lease);

typedef struct stfs_lease_news {
  size_t struct_bytes;       /* the only field that the caller sets */
  uint64_t newer_generation; /* that is there since the last call: attach anew to have it; 0: none */
  int32_t is_server_gone;    /* it has ended. What is mapped stays */
  char why_stuck[4097]; /* why a change of the archives has led to no newer generation; "": no such news */
} stfs_lease_news;

/* Takes the news that is there; never waits. Each is told once, but for is_server_gone. */
STFS_API int stfs_lease_take_news(stfs_lease* lease, stfs_lease_news* news, stfs_error* error);

#ifdef __cplusplus
}
#endif

#endif /* STFS_H */
