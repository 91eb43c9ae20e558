# Completion of safetensorsfs for bash: an archive, an index or a directory, a mount point, and the options of -o one by one.
# packaging/generate writes the marked section.

# BEGIN generated: mount options
_safetensorsfs_options="ro delta= layout=flat layout=tree edit=on edit=off compact=on compact=off reshape allow_other default_permissions uid= gid= umask= durability=power durability=process nolock on_change=follow on_change=fail io=auto io=mmap io=pread passthrough threads= strict strict_modes nonempty auto_unmount log= fsname= subtype= noexec noatime"
# END generated

_safetensorsfs() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} option words="" i arguments=0
  COMPREPLY=()
  # readline breaks words at "=": what follows one belongs to the option before it.
  if [[ $previous == "=" || $current == "=" ]]; then
    [[ $current == "=" ]] && current="" || previous=${COMP_WORDS[COMP_CWORD-2]}
    for option in $_safetensorsfs_options; do
      [[ ${option%%=*} == "${previous##*,}" ]] && words+=" ${option#*=}"
    done
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    return
  fi
  if [[ $previous == -o ]]; then
    local before=""
    [[ $current == *,* ]] && before=${current%,*},
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$_safetensorsfs_options" -- "${current##*,}")
    compopt -o nospace 2>/dev/null
    return
  fi
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "-o -f -d -h --help -V --version" -- "$current")
    return
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -* || ${COMP_WORDS[i-1]} == -o || ${COMP_WORDS[i]} == "=" ||
      ${COMP_WORDS[i-1]} == "=" ]] || ((++arguments))
  done
  compopt -o filenames 2>/dev/null
  case $arguments in
    0) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    1) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
  esac
}

complete -F _safetensorsfs safetensorsfs
