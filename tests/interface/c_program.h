/* A program in C that calls every function of stfs.h, compiled as C11. interface_test.cc calls each function
 * and expects NULL. Any other result is the text of a failure. */
#ifndef STFS_TESTS_C_PROGRAM_H
#define STFS_TESTS_C_PROGRAM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of libstfs that take a number of threads get the largest number.
 *
 * The archive: "m" U8 [3,4] of the bytes 10 * row + column, "big" F32 [256,256] of 0, 1, 2, ..., "empty" I64
 * [0,2], "four" F4 [2,4] of the bytes 0x10 0x32 0x54 0x76; the metadata a=b. */
const char* describes_a_model(const char* path);
const char* points_into_the_map(const char* path);
const char* reads_slices(const char* path);
const char* keeps_a_tensor_when_its_model_is_closed(const char* path);
const char* keeps_what_is_written_to_itself(const char* path);
const char* forgives_writes(const char* path);
const char* reads_where_no_map_is_wanted(const char* path);
const char* works_on_many_threads(const char* path);
const char* tells_errors(const char* path);
/* A sharded model, named by its index. */
const char* notices_a_changed_index(const char* path);
const char* knows_older_and_newer_structures(const char* path);
/* Cuts the archive short. */
const char* survives_a_cut(const char* path);
const char* uploads_to_the_cpu(const char* path);
/* Cuts the archive short. */
const char* tells_what_is_wrong_with_an_upload(const char* path);
const char* lists_devices(const char* path);
const char* edits_a_model(const char* path);
const char* keeps_tensors_of_before_an_edit(const char* path);
const char* opens_an_unchanged_model_once(const char* path);
const char* tells_what_is_wrong_with_an_edit(const char* path);
const char* writes_new_archives(const char* path);
const char* tells_what_is_wrong_with_a_new_archive(const char* path);
/* Edits the archive, after a snapshot. */
const char* compares_models(const char* path);
/* Changes the archive. */
const char* publishes_and_pulls(const char* path);
/* The archive's "big" begins with 4096 bytes 'J', which are only in a journal. */
const char* reads_out_of_a_journal(const char* path);

/* The server at the socket has generation 1, "a" U8 [5] "hello" and "b" F32 [2] 1, 2; then, when there is one
 * lease, generation 2. end_server(server) ends the server. */
const char* leases_what_a_server_keeps(const char* socket, void (*end_server)(void*), void* server);

#ifdef __cplusplus
}
#endif

#endif
