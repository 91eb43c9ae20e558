/* clang-format off */
/* libstfs: the tensors of .safetensors archives for any language that can call C.
 *
 *     stfs_error error;
 *     stfs_model *model = stfs_model_open("model.safetensors", NULL, &error);
 *     uint64_t at;
 *     if (!model || stfs_model_find(model, "lm_head.weight", 14, &at, &error) != 0) {
 *       puts(error.message);
 *       exit(1);
 *     }
 *     stfs_tensor *tensor = stfs_tensor_open(model, at, &error);
 *     const void *data = stfs_tensor_data(tensor, &error);    // in the archive's map: nothing is copied
 *     ...
 *     stfs_tensor_close(tensor);
 *     stfs_model_close(model);
 *
 * UNITS. Sizes, offsets and strides are bytes. Shapes are elements, the outermost dimension first. Times are
 * nanoseconds. Data are little-endian and row-major, as in the archive. Text is UTF-8. A stfs_text has a size
 * and no NUL at its end, because a tensor's name may hold any character.
 *
 * NAMES. A function's name begins with its subject: stfs_model_open(), stfs_upload_wait().
 *
 * OWNERSHIP. A handle is a stfs_model, stfs_edit, stfs_new_archive, stfs_diff, stfs_tensor, stfs_plan,
 * stfs_upload, stfs_resident, stfs_lease or stfs_device_list. The caller owns each handle that a function
 * returns, and closes the handle once with the close function of its type. The close functions ignore
 * NULL. Every other pointer comes from a handle and is valid until that handle is closed; pointers and
 * positions of a model that is edited are valid only until the next stfs_edit_begin() or
 * stfs_edit_commit(). A handle keeps all objects that it needs: a tensor's data stay valid until
 * stfs_tensor_close(), even if the model, plan, resident or lease is closed before.
 *
 * THREADS. Any number of threads may use one handle at the same time. Closing it is the exception: the close
 * must be the last call on the handle. Calls on a model wait while an edit of it commits; calls on tensors do
 * not.
 *
 * ERRORS. A function that returns a pointer fails with NULL. A function that returns an int fails with -1.
 * Both then fill *error. The caller owns *error; the pointer may be NULL. The library prints nothing and
 * installs no signal handler. The value of errno has no meaning.
 *
 * MAPPED DATA (STFS_MAPPED) are the archive's own pages, not a copy. They therefore show what other processes
 * write into the archive, both complete commits and half-written ones; stfs_model_generation() reports
 * changes. If a program truncates the file, or its disk fails, then touching a lost page raises SIGBUS in the
 * touching thread. A caller that cannot trust the file calls stfs_tensor_read() or stfs_tensor_copy(), which
 * fail with EIO instead.
 *
 * VERSIONS. A function keeps its meaning while the library is libstfs.so.0. Structures that may grow begin
 * with struct_bytes, which the caller sets to sizeof. The library does not touch fields that the caller does
 * not know. Fields that the library does not know must be 0. */
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
  const char* data; /* not terminated by NUL */
  size_t size_bytes;
} stfs_text;

/* The version of the library: MAJOR.MINOR.PATCH. */
STFS_API const char* stfs_version(void);

/* --- errors --- */

typedef enum stfs_code {
  STFS_OK = 0,
  /* The file is no valid archive. These names are the names of the reference library's checks. */
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
  /* All other errors. */
  STFS_SYSTEM = 12,           /* a system call or a device failed; see errno_value */
  STFS_INVALID_ARGUMENT = 13, /* the request has no meaning */
  STFS_NOT_FOUND = 14,        /* no such file or tensor */
  STFS_READ_ONLY = 15,
  STFS_WRONG_SIZE = 16,
  STFS_ARCHIVE_CHANGED = 17, /* the file is no longer the one that was opened */
  STFS_ARCHIVE_CUT = 18,     /* the file ends before the bytes that its header promises */
  STFS_BUSY = 19,
  STFS_COMMIT_UNKNOWN = 20,
  STFS_OUT_OF_MEMORY = 21
} stfs_code;

typedef struct stfs_error {
  int32_t code;        /* stfs_code */
  int32_t errno_value; /* the errno that a system call would set; 0 only with STFS_OK */
  char message[4088];  /* one sentence that begins with the path; ends in NUL; cut if it is too long */
} stfs_error;

/* The code's name, "ArchiveCut"; "Unknown" if `code` is no stfs_code. The string is static. */
STFS_API const char* stfs_code_name(int32_t code);

/* --- models --- */

typedef enum stfs_io {
  STFS_IO_AUTO = 0, /* map the archive; read it on stores where maps work badly (NFS, FUSE, ...) */
  STFS_IO_MMAP = 1,
  STFS_IO_PREAD = 2
} stfs_io;

typedef struct stfs_model_options {
  size_t struct_bytes;
  int32_t io;        /* stfs_io */
  int32_t is_strict; /* 1: refuse a model whose index and shards disagree */
  /* 1: use a map that tolerates writes by mistake. Without this option a write to mapped data raises SIGSEGV.
   * With it, the written bytes stay in this process, and all tensors of this model show them. Use it to pass
   * data to libraries that do not know read-only memory. If this map is unavailable, the ordinary map is
   * used. */
  int32_t is_forgiving;
  int32_t unused; /* 0 */
  /* Paths of deltas whose changes the model shows on top of `path`, each on top of the previous ones. With
   * is_writable, edits change the last delta, which is made if it does not exist. stfs_model_open() checks
   * that the base is the one that each delta was made for: in most cases by sizes and times of files.
   * Otherwise it reads the tensors that the delta keeps. */
  const char* const* deltas;
  size_t delta_count;
  int32_t
      is_writable; /* 1: open the files for writing too, for stfs_edit_begin(). EACCES, EROFS: they are not */
} stfs_model_options;

/* Opens an archive, a model's index, or a directory with one index or else with one archive. Also opens a
 * mount of safetensorsfs: its bytes are read from the archive behind the mount, not through the mount. The
 * path may also be the file of a tensor in a mount; the model then has only this tensor. A view in
 * .safetensors/ gives EINVAL, except archive.safetensors. Only headers are read. If a program died after a
 * commit, the committed bytes are read from its journal; see stfs_model_not_shown(). options: may be NULL. */
STFS_API stfs_model* stfs_model_open(const char* path, const stfs_model_options* options, stfs_error* error);
STFS_API void stfs_model_close(stfs_model* model);
/* Returns another handle to the model in its present state. Edits do not change it, and it cannot be
 * edited. */
STFS_API stfs_model* stfs_model_snapshot(const stfs_model* model, stfs_error* error);

STFS_API uint64_t stfs_model_tensor_count(const stfs_model* model);
/* The absolute path of the archive or of the index. */
STFS_API const char* stfs_model_path(const stfs_model* model);
/* Finds the position of the tensor with exactly this name. If there is none, the error is STFS_NOT_FOUND and
 * its message suggests similar names. The suggestion compares all names and is left out if error is NULL. */
STFS_API int stfs_model_find(const stfs_model* model, const char* name, size_t name_bytes, uint64_t* position,
                             stfs_error* error);

/* The pairs of __metadata__, in the order of the header. With several shards, each key appears once. */
STFS_API uint64_t stfs_model_metadata_count(const stfs_model* model);
STFS_API int stfs_model_metadata(const stfs_model* model, uint64_t entry, stfs_text* key, stfs_text* value,
                                 stfs_error* error);

/* The journals beside the model's archives that may hold a newer commit which the tensors do not show. A
 * journal is unreadable if another user owns it, if it has a newer version, or if it is damaged.
 * stfs_model_open() makes the list. `why` is one sentence for each journal. The sentence begins with the
 * journal's path and describes how to continue. */
STFS_API uint64_t stfs_model_not_shown_count(const stfs_model* model);
STFS_API int stfs_model_not_shown(const stfs_model* model, uint64_t entry, stfs_text* why, stfs_error* error);

/* The time of the last write to an archive of the model, in nanoseconds since 1970. The number differs after
 * each change. */
STFS_API int stfs_model_generation(const stfs_model* model, uint64_t* generation, stfs_error* error);
/* Checks that the opened files are still at their paths and that their headers are the ones that were read.
 * Otherwise returns -1 with ESTALE, or with EIO if a file was truncated. Changed bytes of tensors are no
 * failure. */
STFS_API int stfs_model_check_current(const stfs_model* model, stfs_error* error);

/* --- tensors --- */

/* The order is the order of the format's list of dtypes. */
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

/* The dtype's name, "BF16"; NULL if `dtype` is no stfs_dtype. The string is static. */
STFS_API const char* stfs_dtype_name(int32_t dtype);
/* The dtype that a text names: "BF16", "bf16", "bfloat16", "torch.bfloat16", "fp16", "float8_e4m3fn", ...;
 * -1: no dtype has this name. */
STFS_API int32_t stfs_dtype_named(const char* text);
/* The bits of one element: 4, 6, 8, 16, 32 or 64; 0 if `dtype` is no stfs_dtype. */
STFS_API uint32_t stfs_dtype_bits(int32_t dtype);

typedef enum stfs_device_kind { STFS_CPU = 0, STFS_CUDA = 1 } stfs_device_kind;

typedef enum stfs_tensor_flags {
  STFS_MAPPED = 1,  /* the data are an archive's pages: see MAPPED DATA above */
  STFS_WRITABLE = 2 /* the data may be written to; this changes no archive */
} stfs_tensor_flags;

typedef struct stfs_tensor_info {
  size_t struct_bytes; /* the only field that the caller sets */
  stfs_text name;
  int32_t dtype; /* stfs_dtype */
  uint32_t rank;
  const uint64_t* shape;
  /* The distance from one element to the next in each dimension; may be negative. NULL: packed, row-major. */
  const int64_t* strides_bytes;
  uint64_t size_bytes; /* of the elements when packed */
  const char* archive; /* path of the file that holds the tensor */
  uint64_t offset;     /* of the first element in that file */
  int32_t device_kind; /* stfs_device_kind */
  int32_t device_index;
  uint32_t flags; /* stfs_tensor_flags */
} stfs_tensor_info;

/* Describes the tensor at a position below stfs_model_tensor_count(). Positions follow the order of the
 * archives, and within an archive the order of the data. The pointers in info are valid as long as the
 * model. */
STFS_API int stfs_model_describe(const stfs_model* model, uint64_t position, stfs_tensor_info* info,
                                 stfs_error* error);

/* Opens a tensor without reading its data. */
STFS_API stfs_tensor* stfs_tensor_open(const stfs_model* model, uint64_t position, stfs_error* error);
/* Selects some of the elements. The slice is the text that NumPy has between the brackets, "0:10, :, -1". The
 * result shares the data with `tensor` and has strides. Two kinds of slices have no address: slices on a
 * store that is read and not mapped, and slices of elements smaller than a byte. The first stfs_tensor_data()
 * gathers such a slice into memory. */
STFS_API stfs_tensor* stfs_tensor_slice(const stfs_tensor* tensor, const char* slice, stfs_error* error);
STFS_API void stfs_tensor_close(stfs_tensor* tensor);
/* Returns another handle to the same data. Each handle is closed separately. */
STFS_API stfs_tensor* stfs_tensor_retain(const stfs_tensor* tensor, stfs_error* error);

/* Describes an open tensor. The pointers in info are valid as long as this handle. */
STFS_API int stfs_tensor_describe(const stfs_tensor* tensor, stfs_tensor_info* info, stfs_error* error);
/* Returns the address of the first element, in the memory of the tensor's device. The address is valid until
 * the handle is closed. For a mapped tensor this call reads nothing, but it checks that the file still covers
 * the tensor (EIO otherwise); a page is read when it is touched. Any other tensor is read whole by the first
 * call, into memory that the handle owns. Write to the data only if the tensor has STFS_WRITABLE. */
STFS_API void* stfs_tensor_data(const stfs_tensor* tensor, stfs_error* error);
/* Copies a part of the tensor's packed bytes. If the archive fails, the result is EIO, and the content of
 * `to` is unspecified. For a mapped tensor this call reads the file and does not touch the map. A tensor in a
 * GPU's memory gives ENOTSUP. */
STFS_API int stfs_tensor_read(const stfs_tensor* tensor, uint64_t offset, void* to, size_t size_bytes,
                              stfs_error* error);
/* Copies the tensor into new memory, packed, with STFS_WRITABLE. A tensor in a GPU's memory gives ENOTSUP. */
STFS_API stfs_tensor* stfs_tensor_copy(const stfs_tensor* tensor, stfs_error* error);
/* Returns the tensor in writable memory that is copied only where it is written to: a private map of the
 * archive with at most 4 KiB before and after the tensor. Written bytes stay with this handle. Two kinds of
 * tensors are copied at once: tensors smaller than 64 KiB, and tensors that are not one run of bytes in a
 * map. */
STFS_API stfs_tensor* stfs_tensor_private(const stfs_tensor* tensor, stfs_error* error);

/* --- edits: the tensors and the metadata of a model change, all of them or none --- */

typedef struct stfs_edit stfs_edit;

typedef struct stfs_edit_options {
  size_t struct_bytes;
  uint64_t patience_ns; /* the time that the commit waits for the locks of other writers; 0: 10 seconds */
} stfs_edit_options;

/* Begins an edit of a model that was opened with is_writable. The functions below collect changes, and check
 * names and sizes; stfs_edit_commit() makes the changes. A change that fails is left out. A model has one
 * edit at a time: EBUSY. If another program has edited the files after they were opened, they are opened
 * again.
 * Errors: EROFS: the model is open for reading only. options: may be NULL. */
STFS_API stfs_edit* stfs_edit_begin(stfs_model* model, const stfs_edit_options* options, stfs_error* error);
/* Drops the changes if they are not committed. The model may be closed first. */
STFS_API void stfs_edit_close(stfs_edit* edit);

/* Makes or replaces a tensor. If the edit only has tensors that keep their dtype and shape, they are written
 * in place. The data are packed, and must stay valid and unchanged until stfs_edit_commit() or
 * stfs_edit_close() returns. In a sharded model a new tensor goes to the last shard. Errors: STFS_WRONG_SIZE:
 * data_bytes is not the size that dtype and shape need; EINVAL: the name is not UTF-8, or is reserved. */
STFS_API int stfs_edit_put(stfs_edit* edit, const char* name, size_t name_bytes, int32_t dtype, uint32_t rank,
                           const uint64_t* shape, const void* data, uint64_t data_bytes, stfs_error* error);
/* Deletes a tensor. STFS_NOT_FOUND: no tensor has this name. */
STFS_API int stfs_edit_remove(stfs_edit* edit, const char* name, size_t name_bytes, stfs_error* error);

typedef struct stfs_renaming {
  stfs_text from;
  stfs_text to;
} stfs_renaming;

/* Renames all tensors at once, so names may be exchanged. STFS_NOT_FOUND; EEXIST: two tensors would have one
 * name. */
STFS_API int stfs_edit_rename(stfs_edit* edit, const stfs_renaming* renamings, size_t count,
                              stfs_error* error);
/* Gives the bytes of a tensor another dtype and shape. STFS_WRONG_SIZE: these need another number of
 * bytes. */
STFS_API int stfs_edit_reinterpret(stfs_edit* edit, const char* name, size_t name_bytes, int32_t dtype,
                                   uint32_t rank, const uint64_t* shape, stfs_error* error);
/* Sets a key of __metadata__: in the shards that have it, else in the first one. value NULL: removes the key;
 * STFS_NOT_FOUND: no shard has the key. EINVAL: a text is not UTF-8. */
STFS_API int stfs_edit_set_metadata(stfs_edit* edit, const char* key, size_t key_bytes, const char* value,
                                    size_t value_bytes, stfs_error* error);

/* Commits the changes, and ends the edit. On success all changes are on stable storage. On failure the files
 * have no change, unless the error is STFS_COMMIT_UNKNOWN. The model then shows the new state; earlier
 * positions and pointers are invalid. Other calls on the model wait for the commit. Tensors and snapshots
 * that were taken before stay valid. They keep the bytes of deleted, renamed and reshaped tensors. A tensor
 * that is written in place shows its new bytes, as after a commit of another program. Other tensors move into
 * the space of deleted tensors, if that moves at most twice the deleted bytes, or 1 GiB. While earlier
 * tensors or snapshots, or other programs, have an archive open, a deleted tensor keeps its space: other
 * programs show it as a tensor __safetensorsfs.free.N, which `stfs compact` removes. During that time an edit
 * also fails with EBUSY if it needs a longer header than the archive has room for. Other errors: EBUSY:
 * another program writes; ENOSPC; ESTALE: another program has edited the files after stfs_edit_begin(). */
STFS_API int stfs_edit_commit(stfs_edit* edit, stfs_error* error);

/* --- new archives --- */

typedef struct stfs_new_archive stfs_new_archive;

typedef struct stfs_new_tensor {
  stfs_text name;
  int32_t dtype; /* stfs_dtype */
  uint32_t rank;
  const uint64_t* shape;
  const void* data; /* packed; stays valid and unchanged until stfs_new_archive_close() */
  uint64_t data_bytes;
} stfs_new_tensor;

typedef struct stfs_metadata_pair {
  stfs_text key;
  stfs_text value;
} stfs_metadata_pair;

typedef struct stfs_new_archive_options {
  size_t struct_bytes;
  int32_t has_metadata; /* 1: the header has an empty __metadata__ if there is no pair; 0: it has none */
  int32_t unused;       /* 0 */
  uint64_t alignment;   /* the data begin at a multiple of it, a power of two of at least 8; 0: 8 */
  uint64_t slack_bytes; /* at least so many spaces at the header's end, for later edits */
} stfs_new_archive_options;

/* Lays out a new archive in memory: its header, and the order of its data. Header and order are those of the
 * reference library. No data are copied. Errors: EINVAL: a name is not UTF-8, is given twice or is reserved;
 * STFS_WRONG_SIZE: data_bytes is not the size that dtype and shape need. options: may be NULL. */
STFS_API stfs_new_archive* stfs_new_archive_make(const stfs_new_tensor* tensors, size_t count,
                                                 const stfs_metadata_pair* metadata, size_t metadata_count,
                                                 const stfs_new_archive_options* options, stfs_error* error);
STFS_API void stfs_new_archive_close(stfs_new_archive* archive);
/* The size of the whole archive. */
STFS_API uint64_t stfs_new_archive_size(const stfs_new_archive* archive);
/* Copies the whole archive, stfs_new_archive_size() bytes, into memory. */
STFS_API void stfs_new_archive_copy(const stfs_new_archive* archive, void* to);

typedef struct stfs_save_options {
  size_t struct_bytes;
  int32_t is_new;             /* 1: EEXIST if the path exists; 0: a file there is replaced */
  int32_t is_process_durable; /* 1: the file survives only a killed process; 0: also a loss of power */
  /* Permission bits of the file, before the umask; 0: 0666. A file that replaces another one gets no right
   * that the other one lacks. */
  uint32_t mode;
  int32_t unused; /* 0 */
  /* May be NULL. The call invokes it on this thread at the begin, from time to time, and before the sync. A
   * result other than 0 ends the call with ECANCELED; the path is then as before. */
  int (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);
  void* context;
} stfs_save_options;

/* Writes the archive to a temporary file beside the path, syncs it, and renames it: the path has the old file
 * or the whole new one at every moment. A symbolic link at the path is itself replaced. Errors: EISDIR, or
 * EINVAL: the path is a directory or a special file; EPERM: it is in a mount; ENOSPC; ECANCELED. options: may
 * be NULL. */
STFS_API int stfs_new_archive_save(const stfs_new_archive* archive, const char* path,
                                   const stfs_save_options* options, stfs_error* error);

/* --- weight sync --- */

typedef enum stfs_pull_event_kind {
  STFS_PULL_APPLIED = 0,    /* the model has `version` now */
  STFS_PULL_SEEDED = 1,     /* the model has `version` now, a full one, whose files were copied */
  STFS_PULL_UNFINISHED = 2, /* a newer version is not whole yet; `why` names the missing part */
  STFS_PULL_WITHDRAWN = 3   /* a version was withdrawn while it was read; the pull begins again */
} stfs_pull_event_kind;

typedef struct stfs_pull_event {
  size_t struct_bytes;
  int32_t kind; /* stfs_pull_event_kind */
  int32_t unused;
  stfs_text version; /* "000042"; empty if it is not known */
  stfs_text why;
  /* For STFS_PULL_APPLIED: the names of the tensors whose bytes have changed, in order. */
  const stfs_text* changed;
  size_t changed_count;
  uint64_t changed_bytes;
} stfs_pull_event;

typedef struct stfs_pull_options {
  size_t struct_bytes;
  int32_t has_target; /* 1: pull up to version `target`; 0: up to the newest version that is whole */
  uint32_t threads;   /* 0: one for each processor; at most 1024 are used */
  uint64_t target;
  int32_t is_process_durable; /* 1: the changes survive only a killed process; 0: also a loss of power */
  int32_t wait_s;             /* the time to wait for locks, in seconds; 0: 10; -1: no wait */
  /* May be NULL. The pull calls it on this thread after each event. The event is valid during the call. A
   * result other than 0 ends the pull with ECANCELED; versions that were applied stay applied. */
  int (*on_event)(void* context, const stfs_pull_event* event);
  /* May be NULL. The pull calls it on this thread at the begin and the end of each version, from time to time
   * in between, and while it waits for another pull. It gets the bytes of one version that are read or
   * copied; the total is 0 before the first version. A result other than 0 ends the pull with ECANCELED, like
   * a kill: the model keeps the version that it has, and the next pull continues from there. Neither function
   * is called after that. A commit that has begun is not cancelled. */
  int (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);
  void* context; /* for both functions */
} stfs_pull_options;

/* Brings a model up to a version that training has published, one version after the other, each whole or not
 * at all (WEIGHT SYNC in stfs-pull(1)). `model` is a path, as for stfs_model_open(); a directory that does
 * not exist is made from the newest full version. `published` is the directory of the versions. Open models
 * show the change as they show other programs' commits. `version` gets the model's version after the call,
 * or -1 without one; it may be NULL. Errors: EAGAIN: the target is not whole yet, or another user has the
 * name of a file of the model, which has its version without that file; EEXIST: another user has the name of
 * a file of a full version; EINVAL: a wrong base, or damage, with the name of the tensor; EBUSY; ECANCELED.
 * options: may be NULL. */
STFS_API int stfs_sync_pull(const char* model, const char* published, const stfs_pull_options* options,
                            int64_t* version, stfs_error* error);

typedef enum stfs_diff_encoding { STFS_XOR = 0, STFS_OVERWRITE = 1 } stfs_diff_encoding;

typedef struct stfs_publish_options {
  size_t struct_bytes;
  uint64_t version;     /* the number of the version */
  uint64_t base;        /* with has_base: the number of the version that `before` is */
  int32_t has_base;     /* 0: the base is version - 1 */
  int32_t encoding;     /* stfs_diff_encoding */
  const char* checksum; /* "xxh3-128" (also if NULL), "adler32" or "blake3" */
  uint32_t threads;     /* 0: one for each processor; at most 1024 are used */
  int32_t has_since;    /* 1: `since` is set */
  /* With has_since, and a mount as `after`: tensors that have not changed after this generation of the mount
   * are taken to be equal to the tensors of `before`, and are not read. */
  uint64_t since;
  /* May be NULL. Gets the generation of the mount up to which all changes are in the version: it is `since`
   * of the next version. Gets 0 if `after` is no mount. */
  uint64_t* generation;
  /* May be NULL. The call invokes it on this thread at the begin and the end, and from time to time in
   * between. It gets the bytes of `after` that are read. A result other than 0 ends the call with ECANCELED,
   * and nothing is published. */
  int (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);
  void* context;
} stfs_publish_options;

/* Publishes a version: the differences that turn one model into another. Both models must have the same
 * names, dtypes and shapes. When the function returns, the version is on stable storage. Programs may write
 * to a mount during the call: each tensor is published in the state of one moment. Errors: EINVAL: the models
 * differ in more than bytes, or has_since is set and `after` is no mount; EEXIST: the version is published
 * already; EFBIG: a tensor is too large for STFS_OVERWRITE; EBUSY: a tensor of the mount changes faster than
 * it is read; ECANCELED. */
STFS_API int stfs_sync_publish(const stfs_model* before, const stfs_model* after, const char* published,
                               const stfs_publish_options* options, stfs_error* error);

/* --- differences of two models --- */

typedef struct stfs_diff stfs_diff;

typedef struct stfs_diff_options {
  size_t struct_bytes;
  /* Patterns of tensors' names, as for fnmatch(3). With patterns, metadata is not compared. */
  const char* const* patterns;
  size_t pattern_count;
  uint32_t threads; /* number of threads; 0: one for each core; at most 1024 are used */
  int32_t is_brief; /* 1: no statistics; reads each tensor only up to its first difference */
  /* May be NULL. The comparison calls it on this thread at the begin and the end of a pass, and from time to
   * time in between. It gets the bytes of one pass; there may be two passes. A result other than 0 ends the
   * comparison with ECANCELED. */
  int (*progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);
  void* context;
} stfs_diff_options;

/* Compares two models tensor by tensor, or two tensors if both models are files of tensors in mounts. Tensors
 * that no usable shard holds are not compared: open with is_strict. The result does not need the models.
 * Errors: STFS_NOT_FOUND: a pattern matches no tensor; ESTALE: a file was changed during the comparison; EIO;
 * ECANCELED. options: may be NULL. */
STFS_API stfs_diff* stfs_diff_make(const stfs_model* a, const stfs_model* b, const stfs_diff_options* options,
                                   stfs_error* error);
STFS_API void stfs_diff_close(stfs_diff* diff);
/* The number of tensors that were compared. */
STFS_API uint64_t stfs_diff_compared_count(const stfs_diff* diff);
/* The number of tensors that differ. Tensors with different headers are first, in the order of A's data, then
 * of B's; tensors with other bytes follow. */
STFS_API uint64_t stfs_diff_count(const stfs_diff* diff);

typedef enum stfs_difference_kinds {
  STFS_ONLY_IN_A = 1,
  STFS_ONLY_IN_B = 2,
  STFS_OTHER_DTYPE = 4,
  STFS_OTHER_SHAPE = 8,
  STFS_OTHER_BYTES = 16 /* with the same dtype and shape */
} stfs_difference_kinds;

typedef struct stfs_difference {
  size_t struct_bytes; /* the only field that the caller sets */
  stfs_text name;      /* in A, or in B if A lacks the tensor */
  uint32_t kinds;      /* stfs_difference_kinds */
  int32_t dtype_a;     /* stfs_dtype; -1: A lacks the tensor */
  int32_t dtype_b;
  uint32_t rank_a;
  uint32_t rank_b;
  int32_t has_statistics; /* 1: the fields below are set. Only with STFS_OTHER_BYTES, and not if is_brief */
  const uint64_t* shape_a;
  const uint64_t* shape_b;
  uint64_t different;  /* elements whose bits differ */
  uint64_t not_finite; /* elements that are NaN or infinite in A or B; the fields below leave them out */
  double largest_difference;          /* largest |a - b| */
  double largest_relative_difference; /* largest |a - b| / max(|a|, |b|) */
  double cosine;                      /* of the angle between A and B; NaN if one has only zeros */
  double norm_a;                      /* L2 */
  double norm_b;
  double norm_difference; /* of A - B */
} stfs_difference;

/* Describes a tensor that differs. The pointers are valid as long as the handle. */
STFS_API int stfs_diff_tensor(const stfs_diff* diff, uint64_t position, stfs_difference* difference,
                              stfs_error* error);

/* The keys of __metadata__ that only one model has, or that have two values. A value's data is NULL if the
 * model lacks the key. */
STFS_API uint64_t stfs_diff_metadata_count(const stfs_diff* diff);
STFS_API int stfs_diff_metadata(const stfs_diff* diff, uint64_t position, stfs_text* key, stfs_text* value_a,
                                stfs_text* value_b, stfs_error* error);

/* --- devices --- */

typedef struct stfs_device_list stfs_device_list;

typedef struct stfs_device_info {
  size_t struct_bytes;     /* the only field that the caller sets */
  int32_t kind;            /* stfs_device_kind */
  int32_t index;           /* of a GPU, in the driver's order */
  const char* name;        /* "cpu", "cuda:0"; stfs_plan_options takes this name */
  const char* uuid;        /* of a GPU, "GPU-..."; else "" */
  const char* description; /* "NVIDIA H200", or the processor's name */
  uint64_t total_bytes;    /* size of the device's memory */
  uint64_t free_bytes;     /* UINT64_MAX: unknown */
  const char* problem;     /* the reason why this GPU cannot be queried; else "" */
} stfs_device_info;

/* Lists the devices of this machine. The first one is always the CPU. May take seconds while a GPU's driver
 * starts. */
STFS_API stfs_device_list* stfs_device_list_make(stfs_error* error);
STFS_API void stfs_device_list_close(stfs_device_list* list);
STFS_API uint64_t stfs_device_list_count(const stfs_device_list* list);
/* The pointers in info are valid as long as the list. */
STFS_API int stfs_device_list_describe(const stfs_device_list* list, uint64_t position,
                                       stfs_device_info* info, stfs_error* error);
/* One sentence for the user with the reason why there is no GPU; "" if there is one. */
STFS_API const char* stfs_device_list_why_no_cuda(const stfs_device_list* list);

/* --- uploads: tensors into the memory of devices --- */

typedef struct stfs_plan stfs_plan;
typedef struct stfs_upload stfs_upload;
typedef struct stfs_resident stfs_resident;

typedef struct stfs_plan_options {
  size_t struct_bytes;
  /* Exactly one of `devices` and `rules` decides where tensors go. A device is "cpu", "cuda:N" or
   * "cuda:GPU-uuid"; there is no default. */
  const char* devices; /* for all tensors; several, separated by commas: a replica on each, read once */
  const char* rules;   /* lines "PATTERN DEVICE[,DEVICE...] [shard(DIMENSION,PART/PARTS)]"; the first rule
                          that matches a name decides; '#' begins a comment; names that match no rule are
                          left out */
  /* Patterns of tensors' names, as for fnmatch(3), each with an optional slice at its end:
   * "*.q_proj.weight[:128]". No patterns: all tensors. */
  const char* const* patterns;
  size_t pattern_count;
  const char* dtype; /* convert every floating tensor to it: "BF16", "bf16", "F32", ...; NULL: convert none */
  int32_t
      must_cast; /* 1: also FP8 tensors with scales beside them, without these; 0: EINVAL for such tensors */
} stfs_plan_options;

/* Plans an upload. Opens the model's path again and reads only headers. */
STFS_API stfs_plan* stfs_plan_make(const stfs_model* model, const stfs_plan_options* options,
                                   stfs_error* error);
STFS_API void stfs_plan_close(stfs_plan* plan);
/* The number of tensors, or parts of tensors, on devices, including each replica. Positions are in the order
 * in which the tensors are read. */
STFS_API uint64_t stfs_plan_count(const stfs_plan* plan);
/* Describes a tensor as it will be on its device. The pointers in info are valid as long as the plan. */
STFS_API int stfs_plan_describe(const stfs_plan* plan, uint64_t position, stfs_tensor_info* info,
                                stfs_error* error);
STFS_API uint64_t stfs_plan_read_bytes(const stfs_plan* plan);
STFS_API uint64_t stfs_plan_left_out_count(const stfs_plan* plan);
STFS_API int stfs_plan_left_out(const stfs_plan* plan, uint64_t position, stfs_text* name, stfs_error* error);

typedef struct stfs_upload_options {
  size_t struct_bytes;
  uint32_t readers;    /* number of threads, at most 1024; 0: one for each core, at most 8 */
  int32_t must_verify; /* 1: compare a digest of each tensor's bytes on the device with the archive's */
} stfs_upload_options;

/* Starts the upload that the plan describes, on threads of the library. If the tensors do not fit, the call
 * fails with ENOMEM before any byte moves. The plan may then be closed. options: may be NULL. */
STFS_API stfs_upload* stfs_upload_start(const stfs_plan* plan, const stfs_upload_options* options,
                                        stfs_error* error);

typedef struct stfs_upload_progress {
  size_t struct_bytes;  /* the only field that the caller sets */
  uint64_t done_bytes;  /* bytes that have arrived */
  uint64_t total_bytes; /* bytes to read */
  int32_t is_done;      /* 1: stfs_upload_wait() will not block; only stfs_upload_wait() returns the result */
} stfs_upload_progress;
STFS_API int stfs_upload_poll(const stfs_upload* upload, stfs_upload_progress* progress, stfs_error* error);
/* Stops the upload: the rest is not read. stfs_upload_wait() then fails with ECANCELED, unless the upload was
 * already done. */
STFS_API void stfs_upload_cancel(stfs_upload* upload);
/* Waits for the end of an upload. Call it once for each upload. On failure nothing stays on a device. Errors:
 * ECANCELED; ESTALE: an archive has changed after the plan; EIO; EBADMSG: a digest differs; the device's
 * errors.
 * progress: may be NULL. The call invokes it on this thread from time to time, and once with the total at the
 * end. A result other than 0 cancels the upload. */
STFS_API stfs_resident* stfs_upload_wait(stfs_upload* upload,
                                         int (*progress)(void* context, uint64_t done_bytes,
                                                         uint64_t total_bytes),
                                         void* context, stfs_error* error);
/* Cancels the upload if it is still running, and waits for its threads. */
STFS_API void stfs_upload_close(stfs_upload* upload);

typedef struct stfs_upload_report {
  size_t struct_bytes;     /* the only field that the caller sets */
  uint64_t duration_ns;    /* of moving the bytes alone */
  uint64_t read_bytes;     /* bytes read from archives */
  uint64_t cached_bytes;   /* the part of read_bytes that was in the page cache at the start */
  uint64_t overflow_count; /* elements too large for the new dtype */
  uint64_t verified_bytes;
} stfs_upload_report;

/* The number of tensors that have arrived, in the order of the plan. */
STFS_API uint64_t stfs_resident_count(const stfs_resident* resident);
/* Returns a tensor in its device's memory. The handle keeps the memory of all tensors that were uploaded to
 * this device together with this one. The address of data on a GPU is a CUDA device pointer. The data are
 * complete: any stream may use them. */
STFS_API stfs_tensor* stfs_resident_tensor(const stfs_resident* resident, uint64_t position,
                                           stfs_error* error);
STFS_API int stfs_resident_report(const stfs_resident* resident, stfs_upload_report* report,
                                  stfs_error* error);
STFS_API void stfs_resident_close(stfs_resident* resident);

/* --- leases: tensors that `stfs serve` keeps in the memory of devices, mapped by this process --- */

typedef struct stfs_lease stfs_lease;

typedef struct stfs_lease_options {
  size_t struct_bytes;
  uint64_t patience_ns; /* the time to wait for a server that is still uploading; 0: 60 seconds */
} stfs_lease_options;

/* Leases the newest generation of the server at this socket. No byte is copied. The tensors are read-only:
 * writing to their data raises SIGSEGV on the CPU, and is a CUDA error on a GPU.
 * Errors: ENOENT, ECONNREFUSED: no server listens there; EACCES, EPERM: the server is a process of another
 * user; ETIMEDOUT: the server is still uploading; EBUSY: the server has as many leases as it allows. options:
 * may be NULL. */
STFS_API stfs_lease* stfs_lease_attach(const char* socket, const stfs_lease_options* options,
                                       stfs_error* error);
/* Closes the handle. The server counts the lease until the last of its tensors is also closed. */
STFS_API void stfs_lease_close(stfs_lease* lease);

STFS_API uint64_t stfs_lease_count(const stfs_lease* lease);
/* Returns a leased tensor, in the order of the tensors in their archives, including each replica. Its info
 * names no archive: "" and offset 0. */
STFS_API stfs_tensor* stfs_lease_tensor(const stfs_lease* lease, uint64_t position, stfs_error* error);
/* The number of the leased generation. The first one is 1, and each change of the archives that the server
 * has uploaded adds one. */
STFS_API uint64_t stfs_lease_generation(const stfs_lease* lease);
/* The version of the weight sync that the generation holds ("000042"); "": unknown. Valid until
 * stfs_lease_renew() or stfs_lease_close(). */
STFS_API const char* stfs_lease_version(const stfs_lease* lease);
/* The absolute paths of the served models. The texts are valid until stfs_lease_renew() or
 * stfs_lease_close(). */
STFS_API uint64_t stfs_lease_source_count(const stfs_lease* lease);
STFS_API const char* stfs_lease_source(const stfs_lease* lease, uint64_t position); /* NULL: no such source */

/* A descriptor for poll(2) that is readable when there is news. The lease owns it. -1 after the server has
 * ended. */
STFS_API int stfs_lease_descriptor(const stfs_lease* lease);

typedef struct stfs_lease_news {
  size_t struct_bytes;       /* the only field that the caller sets */
  uint64_t newer_generation; /* new since the last call: stfs_lease_renew() leases it; 0: none */
  int32_t is_server_gone;    /* 1: the server has ended; mapped tensors stay valid */
  char why_stuck[4097]; /* why a change of the archives has led to no newer generation; "": no such news */
} stfs_lease_news;

/* Takes the pending news and never waits. Each item is reported once, except is_server_gone. */
STFS_API int stfs_lease_take_news(stfs_lease* lease, stfs_lease_news* news, stfs_error* error);

/* Waits until the server has a generation newer than the leased one. Sets *generation to its number, or to 0
 * if there is none after patience_ns. Other calls on the lease wait during this call: for a long wait, poll
 * stfs_lease_descriptor() instead. Errors: ECONNRESET: the server has ended. */
STFS_API int stfs_lease_wait(stfs_lease* lease, uint64_t patience_ns, uint64_t* generation,
                             stfs_error* error);
/* Leases the newest generation instead of the present one. If there is no newer one, changes nothing. After
 * that, positions are positions in the new generation. Tensors that have not changed keep their addresses,
 * unless the server has moved them to free memory. Earlier stfs_tensor handles stay valid, with their old
 * bytes: programs may continue to use the handles of unchanged tensors. The server counts the lease only for
 * the new generation.
 * patience_ns: the time to wait for the answer; 0: 60 seconds. Errors: ECONNRESET: the server has ended;
 * ETIMEDOUT: call again; after other errors, attach again. After an error the lease is still a lease of the
 * old generation. */
STFS_API int stfs_lease_renew(stfs_lease* lease, uint64_t patience_ns, stfs_error* error);
/* The number of tensors that the last stfs_lease_renew() has brought with other bytes, another dtype or
 * another shape than in the previous generation, and their positions, ascending. `number` must be below the
 * count; otherwise the result is UINT64_MAX. */
STFS_API uint64_t stfs_lease_changed_count(const stfs_lease* lease);
STFS_API uint64_t stfs_lease_changed(const stfs_lease* lease, uint64_t number);

#ifdef __cplusplus
}
#endif

#endif /* STFS_H */
