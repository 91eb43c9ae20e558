# Completion of stfs for fish. Verbs, options, files, and for `cat`, `ls`, `slice`, `verify` and `put` the names of the tensors.

set -l verbs ls info cat slice verify put apply recover upload devices serve sample help

# The first argument after the verb that is no option, nor the value of one.
function __stfs_target
    set -l words (commandline -opc)
    set -l skip 0
    for word in $words[3..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word --sort -d --device --select --dtype --socket --status --from-tensor --durability --wait -o --output --record --against --threads
            set skip 1
        else if not string match -q -- '-*' $word
            echo (string replace -r '^~/' "$HOME/" -- $word)
            return 0
        end
    end
    return 1
end

# Names with a backslash are left out: they are escaped in this output and would not be found.
function __stfs_tensors
    set -l target (__stfs_target); or return
    stfs ls --names -- $target 2>/dev/null | string match -v '*\\\\*' | string match -v '""'
end

complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -f
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -s h -l help -d 'Help'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -s V -l version -d 'The version'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a ls -d 'List the tensors: name, dtype, shape, size'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a info -d 'What an archive holds: totals, metadata, alignment'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a cat -d 'Write the bytes of tensors to standard output'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a slice -d 'Write some elements of a tensor, selected as in NumPy'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a verify -d 'Read every byte: checksums, NaNs, what differs'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a put -d 'Change one tensor: from bytes, a .npy file or another archive'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a apply -d 'Change all tensors of a delta at once, or none'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a recover -d 'Finish what an interrupted writer has committed'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a upload -d 'Move tensors into the memory of devices'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a devices -d 'The devices that upload can move to'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a serve -d 'Keep tensors in the memory of devices'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a sample -d 'Write a small model to try things on'
complete -c stfs -n "not __fish_seen_subcommand_from $verbs" -a help -d 'Explain a verb'
complete -c stfs -n "__fish_seen_subcommand_from help" -f -a "ls info cat slice verify put apply recover upload devices serve sample"

complete -c stfs -n "__fish_seen_subcommand_from ls info cat slice verify put apply recover upload devices serve sample" -s h -l help -d 'Help'
complete -c stfs -n "__fish_seen_subcommand_from ls cat slice verify; and __stfs_target >/dev/null" -f -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from ls" -l sort -x -a "name size offset" -d 'Sort by'
complete -c stfs -n "__fish_seen_subcommand_from ls" -s r -l reverse -d 'The other way round'
complete -c stfs -n "__fish_seen_subcommand_from ls info" -s b -l bytes -d 'Sizes as exact bytes'
complete -c stfs -n "__fish_seen_subcommand_from ls" -l names -d 'Names only, one per line'
complete -c stfs -n "__fish_seen_subcommand_from ls info slice verify put apply recover upload devices serve sample" -l json -d 'Print JSON'
complete -c stfs -n "__fish_seen_subcommand_from cat slice" -s f -l force -d 'Write even to a terminal'
complete -c stfs -n "__fish_seen_subcommand_from slice" -s o -l output -r -F -d 'Write to a file'
complete -c stfs -n "__fish_seen_subcommand_from slice" -l npy -d 'A NumPy file'
complete -c stfs -n "__fish_seen_subcommand_from slice" -l raw -d 'Bare elements, whatever the name'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l record -r -F -d 'Write a record'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l against -r -F -d 'Compare with a record'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l finite -d 'NaNs and infinities are problems'
complete -c stfs -n "__fish_seen_subcommand_from verify" -l threads -x -d 'Read so many tensors at a time'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l layers -x -d 'Layers of the transformer'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l hidden -x -d 'Its width, a multiple of 8'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l size -x -d 'As many layers as make this much data'
complete -c stfs -n "__fish_seen_subcommand_from sample" -l seed -x -d 'Another seed, other values'
complete -c stfs -n "__fish_seen_subcommand_from sample" -s f -l force -d 'Replace the file where it exists'
complete -c stfs -n "__fish_seen_subcommand_from put; and __stfs_target >/dev/null" -a "(__stfs_tensors)"
complete -c stfs -n "__fish_seen_subcommand_from put" -l from-tensor -x -d 'Take this tensor of an archive'
complete -c stfs -n "__fish_seen_subcommand_from put" -l raw -d 'Raw bytes, whatever the name'
complete -c stfs -n "__fish_seen_subcommand_from put apply" -l durability -x -a "power process" -d 'What the change survives'
complete -c stfs -n "__fish_seen_subcommand_from put apply" -l nolock -d 'Take no locks'
complete -c stfs -n "__fish_seen_subcommand_from put apply" -l wait -x -d 'Seconds to wait for locks'
complete -c stfs -n "__fish_seen_subcommand_from apply recover" -s n -l dry-run -d 'Look, change nothing'
complete -c stfs -n "__fish_seen_subcommand_from devices" -f
complete -c stfs -n "__fish_seen_subcommand_from upload" -s d -l device -x -a "cpu cuda:0" -d 'Where to'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l select -x -d 'Only tensors that it matches'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l dtype -x -a "BF16 F16 F32 F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ" -d 'Convert floating tensors'
complete -c stfs -n "__fish_seen_subcommand_from upload" -l verify -d 'Compare what lies on the devices'
complete -c stfs -n "__fish_seen_subcommand_from upload" -s n -l dry-run -d 'Show what would go where'
complete -c stfs -n "__fish_seen_subcommand_from recover" -l force -d 'Apply journals of another archive too'
complete -c stfs -n "__fish_seen_subcommand_from serve" -s d -l device -x -a "cpu cuda:0" -d 'Where to'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l socket -r -F -d 'Where clients connect'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l select -x -d 'Only tensors that it matches'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l dtype -x -a "BF16 F16 F32 F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ" -d 'Convert floating tensors'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l verify -d 'Compare what lies on the devices'
complete -c stfs -n "__fish_seen_subcommand_from serve" -l status -r -F -d 'Ask the server there'
