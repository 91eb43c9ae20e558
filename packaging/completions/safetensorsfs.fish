# Completion of safetensorsfs for fish: an archive, an index or a directory, a mount point, and the options of -o one by one.
# packaging/generate writes the marked section.

# BEGIN generated: mount options
set -l options ro delta= layout=flat layout=tree edit=on edit=off compact=on compact=off reshape allow_other default_permissions uid= gid= umask= durability=power durability=process nolock on_change=follow on_change=fail io=auto io=mmap io=pread passthrough threads= strict strict_modes nonempty auto_unmount log= fsname= subtype= noexec noatime
# END generated

complete -c safetensorsfs -s o -x -a "(__fish_append , $options)" -d 'Mount options'
complete -c safetensorsfs -s f -d 'Stay in the foreground'
complete -c safetensorsfs -s d -d 'Stay in the foreground, and print every request'
complete -c safetensorsfs -s h -l help -d 'Print this help'
complete -c safetensorsfs -s V -l version -d 'Print the version'
