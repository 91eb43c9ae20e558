# Completion of stfs for fish: verbs, options, files, and the names of tensors. packaging/generate writes the marked section.

# The first argument after the verb that is no option, nor the value of one.
function __stfs_target
    set -l words (commandline -opc)
    set -l skip 0
    for word in $words[3..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word $__stfs_valued
            set skip 1
        else if not string match -q -- '-*' $word
            echo (string replace -r '^~/' "$HOME/" -- $word)
            return 0
        end
    end
    return 1
end

# Prints what stfs lists in at most two seconds: the target may be in a mount that does not answer. Omits names
# with a backslash: stfs escapes them, so the shell would pass another name.
function __stfs_list
    timeout -k 1 2 stfs $argv 2>/dev/null </dev/null | string match -v '*\\\\*' | string match -v -- '-*' | string match -v '""'
end

# Prints the tensors of an archive, an index, or a directory with a model. Opens no other file.
function __stfs_tensors
    set -l target (__stfs_target); or return
    string match -qr '\.safetensors(\.index\.json)?$' -- $target; or test -d $target; or return
    __stfs_list ls --names -- $target
end

function __stfs_devices
    __stfs_list devices --names
end

function __stfs_mounts
    __stfs_list mounts --names
end

# BEGIN generated: verbs
set -g __stfs_verbs ls info cat slice verify diff put apply pull rm mv set commit compact repack recover upload devices serve fetch cache mounts top umount sample
set -g __stfs_valued --sort --svg -o --output --record --against --threads --out --encoding --version --base --checksum --since --from-tensor --dtype --shape --durability --wait --to --interval --exec --metadata --unset --into --delta --keep --drop --order --align --slack --shard-size -d --device --select --socket --status --unpin --prove --limit --layers --hidden --size --seed
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a ls -d 'List the tensors of an archive or a sharded model'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a info -d 'Show totals by dtype, metadata, header and alignment of a model'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a cat -d 'Write the bytes of tensors to standard output'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a slice -d 'Write some elements of a tensor, selected as in NumPy'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a verify -d 'Read every byte: checksums, NaNs, and differences from a record'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a diff -d 'Compare two models tensor by tensor'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a put -d 'Replace the content of one tensor, completely or not at all'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a apply -d 'Change all tensors of a delta in the target at once, or none'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a pull -d 'Apply the versions of a weight sync that a model lacks'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a rm -d 'Delete tensors, without rewriting the archive'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a mv -d 'Rename tensors, without rewriting the archive'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a set -d 'Change metadata, or the dtype and shape of a tensor. No tensor'\''s bytes change'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a commit -d 'Merge a delta into its base, completely or not at all'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a compact -d 'Give the space of deleted tensors back, without a second copy'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a repack -d 'Write the tensors of a model into a new archive or new shards'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a recover -d 'Finish the commits of interrupted writers'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a upload -d 'Move tensors into the memory of devices'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a devices -d 'List the devices for uploads, and their memory'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a serve -d 'Keep tensors in the memory of devices and share them with other processes'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a fetch -d 'Bring tensors of a remote model to this machine'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a cache -d 'List, prove and drop what has been fetched from remote models'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a mounts -d 'List the mounts of safetensorsfs, and their states'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a top -d 'Show the reads, writes and commits of a mount while they happen'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a umount -d 'Unmount, and wait until all changes are on stable storage'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a sample -d 'Write a model like a small language model, for experiments'
complete -c stfs -n "__fish_seen_subcommand_from ls; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from ls" -l sort -x -a "name size offset" -d 'Order: name, size (largest first) or offset (the default)'
complete -c stfs -n "__fish_seen_subcommand_from ls" -s r -l reverse -d 'Reverse the order'
complete -c stfs -n "__fish_seen_subcommand_from ls" -s b -l bytes -d 'Print sizes as exact numbers of bytes'
complete -c stfs -n "__fish_seen_subcommand_from ls" -l names -d 'Print names only, one per line'
complete -c stfs -n "__fish_seen_subcommand_from ls" -l json -d 'Print a JSON object with an array of the tensors'
complete -c stfs -n "__fish_seen_subcommand_from ls" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from info" -s b -l bytes -d 'Print sizes in the table as exact numbers of bytes'
complete -c stfs -n "__fish_seen_subcommand_from info" -l plot -d 'Draw bars with the bytes of each layer, by dtype'
complete -c stfs -n "__fish_seen_subcommand_from info" -l svg -r -F -d 'Write the same picture to FILE'
complete -c stfs -n "__fish_seen_subcommand_from info" -s f -l force -d 'With --svg: replace FILE if it exists'
complete -c stfs -n "__fish_seen_subcommand_from info" -l json -d 'Print a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from info" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from cat; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from cat" -s f -l force -d 'Write binary data to a terminal too'
complete -c stfs -n "__fish_seen_subcommand_from cat" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from slice; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from slice" -s o -l output -r -F -d 'Write to FILE once all is read'
complete -c stfs -n "__fish_seen_subcommand_from slice" -l npy -d 'Write the header of a NumPy file before the elements'
complete -c stfs -n "__fish_seen_subcommand_from slice" -l raw -d 'Write only the elements, even if the name of FILE ends in .npy'
complete -c stfs -n "__fish_seen_subcommand_from slice" -s f -l force -d 'Replace FILE if it exists'
complete -c stfs -n "__fish_seen_subcommand_from slice" -l json -d 'Describe the slice as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from slice" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from verify; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from verify" -l record -r -F -d 'Write a record of dtypes, shapes and checksums (JSON)'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l plot -d 'Draw a histogram of the values, and the outliers and NaNs of each layer'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l svg -r -F -d 'Write the same picture to FILE'
complete -c stfs -n "__fish_seen_subcommand_from verify" -s f -l force -d 'With --record or --svg: replace FILE if it exists'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l against -r -F -d 'Compare with a record'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l finite -d 'Report NaNs and infinities as problems'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l threads -x -d 'Read N tensors at a time'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l json -d 'Print tensors and problems as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from verify" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from diff; and __stfs_target >/dev/null" -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from diff" -s q -l brief -d 'Print only the summary'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l threads -x -d 'Use N threads'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l out -r -F -d 'Write an archive of what leads from A to B, a delta'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l plot -d 'Draw a map of the layers by relative change, in place of the tables'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l svg -r -F -d 'Write the same picture to FILE'
complete -c stfs -n "__fish_seen_subcommand_from diff" -s f -l force -d 'Replace OUT, or FILE of --svg, if it exists'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l encoding -x -a "xor overwrite" -d 'Publish a version: what leads from A to B, for weight sync'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l version -x -d 'With --encoding: the number of the version'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l base -x -d 'With --encoding: the number of the version that A is'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l checksum -x -a "xxh3-128 adler32 blake3" -d 'With --encoding: the checksums of B'\''s tensors'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l since -x -d 'With --encoding, and a mount as B: read only what has changed since its GENERATION'
complete -c stfs -n "__fish_seen_subcommand_from diff" -l json -d 'Print differences and problems as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from diff" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from put; and __stfs_target >/dev/null" -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from put" -l from-tensor -x -d 'Take the tensor NAME2 of the archive FILE'
complete -c stfs -n "__fish_seen_subcommand_from put" -l raw -d 'Read FILE as raw bytes, whatever its name'
complete -c stfs -n "__fish_seen_subcommand_from put" -s c -l create -d 'Make a new tensor, or change the dtype and shape of NAME'
complete -c stfs -n "__fish_seen_subcommand_from put" -l dtype -x -a "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64" -d 'With --create: the dtype, if FILE does not tell it'
complete -c stfs -n "__fish_seen_subcommand_from put" -l shape -x -d 'With --create: the shape, such as 4096,4096, if FILE does not tell it'
complete -c stfs -n "__fish_seen_subcommand_from put" -s n -l dry-run -d 'Check all that can be checked without reading FILE'
complete -c stfs -n "__fish_seen_subcommand_from put" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from put" -l durability -x -a "power process" -d 'The change survives a loss of power (the default), or a killed process only'
complete -c stfs -n "__fish_seen_subcommand_from put" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from put" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from put" -l json -d 'Describe the change as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from put" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from apply" -s n -l dry-run -d 'Check all and list the tensors that would change'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l durability -x -a "power process" -d 'The change survives a loss of power (the default), or a killed process only'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l threads -x -d 'Threads that apply a published version'
complete -c stfs -n "__fish_seen_subcommand_from apply" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from apply" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l to -x -d 'Pull up to version N'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l follow -d 'Do not end: wait for the next version'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l interval -x -d 'With --follow: look again after SECONDS, for what other hosts publish'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l exec -x -d 'Run COMMAND after each version'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l status -d 'Print which version MODEL has and which it lacks'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l threads -x -d 'Threads that apply a version'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l durability -x -a "power process" -d 'The change survives a loss of power (the default), or a killed process only'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from pull" -l json -d 'Print a JSON object; with --follow one for each event, on a line'
complete -c stfs -n "__fish_seen_subcommand_from pull" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from rm; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from rm" -s n -l dry-run -d 'Check all and print what would change'
complete -c stfs -n "__fish_seen_subcommand_from rm" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from rm" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from rm" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from rm" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from rm" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from mv; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from mv" -s n -l dry-run -d 'Check all and print what would change'
complete -c stfs -n "__fish_seen_subcommand_from mv" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from mv" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from mv" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from mv" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from mv" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from set; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from set" -l metadata -x -d 'Set a key of the metadata'
complete -c stfs -n "__fish_seen_subcommand_from set" -l unset -x -d 'Remove a key of the metadata'
complete -c stfs -n "__fish_seen_subcommand_from set" -l dtype -x -a "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64" -d 'New dtype of NAME'
complete -c stfs -n "__fish_seen_subcommand_from set" -l shape -x -d 'New shape of NAME, such as 4096,4096'
complete -c stfs -n "__fish_seen_subcommand_from set" -s n -l dry-run -d 'Check all and print what would change'
complete -c stfs -n "__fish_seen_subcommand_from set" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from set" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from set" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from set" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from set" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l base -r -F -d 'The base: archive, sharded model, or root of a mount'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l into -r -F -d 'Write base and delta as the new archive OUT'
complete -c stfs -n "__fish_seen_subcommand_from commit" -s f -l force -d 'With --into: replace a file that exists'
complete -c stfs -n "__fish_seen_subcommand_from commit" -s n -l dry-run -d 'Check all and print what would change'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from commit" -l keep-space -d 'Move no tensors into the space of deleted ones: fillers keep it for new tensors'
complete -c stfs -n "__fish_seen_subcommand_from commit" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from compact" -s n -l dry-run -d 'Check all and print what would change'
complete -c stfs -n "__fish_seen_subcommand_from compact" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from compact" -l wait -x -d 'Wait up to SECONDS for the locks of other writers'
complete -c stfs -n "__fish_seen_subcommand_from compact" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from compact" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l delta -r -F -d 'Write SOURCE with the changes of DELTA, which stfs diff --out or a mount has written'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l keep -x -d 'Write only tensors whose name matches a GLOB'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l drop -x -d 'Leave out tensors whose name matches'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l dtype -x -a "F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" -d 'Convert floating-point tensors to DTYPE'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l dequantize -d 'With --dtype: multiply quantized values by their scales, and leave the scales out'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l cast -d 'With --dtype: convert quantized values without their scales'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l order -x -a "source name reference" -d 'Order of the data: source (default), name, or reference (by alignment, then name)'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l align -x -d 'Start the data at a multiple of SIZE'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l slack -x -d 'Leave SIZE in the header for later edits'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l shard-size -x -d 'Begin a new shard before SIZE would be exceeded'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l threads -x -d 'Convert with N threads'
complete -c stfs -n "__fish_seen_subcommand_from repack" -s f -l force -d 'Replace files that exist'
complete -c stfs -n "__fish_seen_subcommand_from repack" -s n -l dry-run -d 'Check all and list what would be written'
complete -c stfs -n "__fish_seen_subcommand_from repack" -l json -d 'Describe what was written as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from repack" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from recover" -s n -l dry-run -d 'Look and explain'
complete -c stfs -n "__fish_seen_subcommand_from recover" -l force -d 'Apply a foreign journal too, if it knows the content of every block'
complete -c stfs -n "__fish_seen_subcommand_from recover" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from recover" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from upload" -s d -l device -x -a "(__stfs_devices)" -d 'cpu, cuda:0, several devices with commas, or @FILE for a file of rules'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l select -x -d 'Only tensors whose name matches PATTERN'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l dtype -x -a "F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" -d 'Convert floating-point tensors to DTYPE on the device'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l cast -d 'With --dtype: convert quantized values without their scales'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l verify -d 'Read all data again and compare them with the memory of the devices'
complete -c stfs -n "__fish_seen_subcommand_from upload" -s n -l dry-run -d 'Show the plan and the free memory of the devices'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l json -d 'Print the plan and the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from upload" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from devices" -f
complete -c stfs -n "__fish_seen_subcommand_from devices" -l names -d 'Print the names of the devices that can be used, one per line'
complete -c stfs -n "__fish_seen_subcommand_from devices" -l json -d 'Print a JSON object of the devices, with the reason if there is no GPU'
complete -c stfs -n "__fish_seen_subcommand_from devices" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from serve" -s d -l device -x -a "(__stfs_devices)" -d 'cpu, cuda:0, several devices with commas, or @FILE for a file of rules'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l select -x -d 'Only tensors whose name matches PATTERN'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l dtype -x -a "F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" -d 'Convert floating-point tensors to DTYPE on the device'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l cast -d 'With --dtype: convert quantized values without their scales'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l socket -r -F -d 'Unix socket for clients, created with mode 0600'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l verify -d 'Read all data again and compare them with the memory of the devices'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l no-follow -d 'Keep the first upload: ignore later changes of the archive'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l status -r -F -d 'Ask the server at SOCKET for its generations and leases'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l json -d 'Print events, or the status, as JSON: an object in each line'
complete -c stfs -n "__fish_seen_subcommand_from serve" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from fetch; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from fetch" -l pin -d 'Keep the tensors until `stfs cache --drop` or `--unpin`'
complete -c stfs -n "__fish_seen_subcommand_from fetch" -s n -l dry-run -d 'Only print how many bytes and requests it would take'
complete -c stfs -n "__fish_seen_subcommand_from fetch" -l json -d 'Print a JSON object with the numbers'
complete -c stfs -n "__fish_seen_subcommand_from fetch" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from cache" -f
complete -c stfs -n "__fish_seen_subcommand_from cache" -l drop -x -d 'Drop these files'
complete -c stfs -n "__fish_seen_subcommand_from cache" -l unpin -x -d 'Let these files go when the disk is nearly full'
complete -c stfs -n "__fish_seen_subcommand_from cache" -l prove -x -d 'Compare these files with the digests that the Hub lists'
complete -c stfs -n "__fish_seen_subcommand_from cache" -l limit -x -d 'Keep at most this many bytes (K, M, G, T), or `none`'
complete -c stfs -n "__fish_seen_subcommand_from cache" -l json -d 'Print a JSON object with an array of the files'
complete -c stfs -n "__fish_seen_subcommand_from cache" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from mounts" -f
complete -c stfs -n "__fish_seen_subcommand_from mounts" -l names -d 'Print mount points only, one per line'
complete -c stfs -n "__fish_seen_subcommand_from mounts" -l json -d 'Print a JSON object with an array of the mounts'
complete -c stfs -n "__fish_seen_subcommand_from mounts" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from top" -f -a "(__stfs_mounts)"
complete -c stfs -n "__fish_seen_subcommand_from top" -l once -d 'Print the figures of one interval, and end'
complete -c stfs -n "__fish_seen_subcommand_from top" -l interval -x -d 'Look again after SECONDS'
complete -c stfs -n "__fish_seen_subcommand_from top" -l json -d 'With --once: print a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from top" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from umount" -f -a "(__stfs_mounts)"
complete -c stfs -n "__fish_seen_subcommand_from umount" -l json -d 'Print the result as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from umount" -s h -l help -d 'Print this help'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l layers -x -d 'Number of layers'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l hidden -x -d 'Width of a layer, a multiple of 8'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l size -x -d 'Write about this much data, for example 1G'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l seed -x -d 'Seed of the random values'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l odd -d 'Add tensors of all dtypes, with unusual shapes and names'
complete -c stfs -n "__fish_seen_subcommand_from sample" -s f -l force -d 'Replace PATH if it exists'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l json -d 'Describe the archive as a JSON object'
complete -c stfs -n "__fish_seen_subcommand_from sample" -s h -l help -d 'Print this help'
# END generated

complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -f
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -s h -l help -d 'Print this help'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -s V -l version -d 'Print the version'
complete -c stfs -n "not __fish_seen_subcommand_from $__stfs_verbs help" -a help -d 'Explain a verb'
complete -c stfs -n "__fish_seen_subcommand_from help" -f -a "$__stfs_verbs"
