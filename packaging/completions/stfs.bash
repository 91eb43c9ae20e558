# Completion of stfs for bash: verbs, options, files, and the names of tensors. packaging/generate writes the marked section.

# BEGIN generated: verbs
_stfs_verbs="ls info cat slice verify diff put apply pull rm mv set commit compact repack recover upload devices serve fetch cache mounts top umount sample"

# Sets `options`, and `kinds`: what each argument is. A kind that ends in ... repeats.
_stfs_verb() {
  case $1 in
    ls) options="--sort --reverse --bytes --names --json --help" kinds=(file tensor...) ;;
    info) options="--bytes --plot --svg --force --json --help" kinds=(file) ;;
    cat) options="--force --help" kinds=(file tensor...) ;;
    slice) options="--output --npy --raw --force --json --help" kinds=(file tensor) ;;
    verify) options="--record --plot --svg --force --against --finite --threads --json --help" kinds=(file tensor...) ;;
    diff) options="--brief --threads --out --plot --svg --force --encoding --version --base --checksum --since --json --help" kinds=(file file tensor...) ;;
    put) options="--from-tensor --raw --create --dtype --shape --dry-run --keep-space --durability --nolock --wait --json --help" kinds=(file tensor_or_file file) ;;
    apply) options="--dry-run --durability --nolock --wait --keep-space --threads --json --help" kinds=(file file) ;;
    pull) options="--to --follow --interval --exec --status --threads --durability --nolock --wait --json --help" kinds=(file file) ;;
    rm) options="--dry-run --nolock --wait --json --keep-space --help" kinds=(file tensor...) ;;
    mv) options="--dry-run --nolock --wait --json --keep-space --help" kinds=(file tensor tensor) ;;
    set) options="--metadata --unset --dtype --shape --dry-run --nolock --wait --json --keep-space --help" kinds=(file tensor...) ;;
    commit) options="--base --into --force --dry-run --nolock --wait --json --keep-space --help" kinds=(file) ;;
    compact) options="--dry-run --nolock --wait --json --help" kinds=(file) ;;
    repack) options="--delta --keep --drop --dtype --dequantize --cast --order --align --slack --shard-size --threads --force --dry-run --json --help" kinds=(file file) ;;
    recover) options="--dry-run --force --json --help" kinds=(file) ;;
    upload) options="--device --select --dtype --cast --verify --dry-run --json --help" kinds=(file...) ;;
    devices) options="--names --json --help" kinds=() ;;
    serve) options="--device --select --dtype --cast --socket --verify --no-follow --status --json --help" kinds=(file...) ;;
    fetch) options="--pin --dry-run --json --help" kinds=(file tensor...) ;;
    cache) options="--drop --unpin --prove --limit --json --help" kinds=() ;;
    mounts) options="--names --json --help" kinds=() ;;
    top) options="--once --interval --json --help" kinds=(mount) ;;
    umount) options="--json --help" kinds=(mount...) ;;
    sample) options="--layers --hidden --size --seed --odd --force --json --help" kinds=(file) ;;
    *) return 1 ;;
  esac
}

# Sets `words` to what completes the value of an option. Fails if the option takes no value.
_stfs_value() {
  case $1:$2 in
    ls:--sort) words="name size offset" ;;
    info:--svg) words="FILE" ;;
    slice:-o | slice:--output) words="FILE" ;;
    verify:--record) words="FILE" ;;
    verify:--svg) words="FILE" ;;
    verify:--against) words="FILE" ;;
    verify:--threads) words="" ;;
    diff:--threads) words="" ;;
    diff:--out) words="FILE" ;;
    diff:--svg) words="FILE" ;;
    diff:--encoding) words="xor overwrite" ;;
    diff:--version) words="" ;;
    diff:--base) words="" ;;
    diff:--checksum) words="xxh3-128 adler32 blake3" ;;
    diff:--since) words="" ;;
    put:--from-tensor) words="" ;;
    put:--dtype) words="BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64" ;;
    put:--shape) words="" ;;
    put:--durability) words="power process" ;;
    put:--wait) words="" ;;
    apply:--durability) words="power process" ;;
    apply:--wait) words="" ;;
    apply:--threads) words="" ;;
    pull:--to) words="" ;;
    pull:--interval) words="" ;;
    pull:--exec) words="" ;;
    pull:--threads) words="" ;;
    pull:--durability) words="power process" ;;
    pull:--wait) words="" ;;
    rm:--wait) words="" ;;
    mv:--wait) words="" ;;
    set:--metadata) words="" ;;
    set:--unset) words="" ;;
    set:--dtype) words="BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64" ;;
    set:--shape) words="" ;;
    set:--wait) words="" ;;
    commit:--base) words="FILE" ;;
    commit:--into) words="FILE" ;;
    commit:--wait) words="" ;;
    compact:--wait) words="" ;;
    repack:--delta) words="FILE" ;;
    repack:--keep) words="" ;;
    repack:--drop) words="" ;;
    repack:--dtype) words="F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" ;;
    repack:--order) words="source name reference" ;;
    repack:--align) words="" ;;
    repack:--slack) words="" ;;
    repack:--shard-size) words="" ;;
    repack:--threads) words="" ;;
    upload:-d | upload:--device) words="DEVICE" ;;
    upload:--select) words="" ;;
    upload:--dtype) words="F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" ;;
    serve:-d | serve:--device) words="DEVICE" ;;
    serve:--select) words="" ;;
    serve:--dtype) words="F8_E5M2 F8_E4M3 F8_E4M3FNUZ F8_E5M2FNUZ F16 BF16 F32" ;;
    serve:--socket) words="FILE" ;;
    serve:--status) words="FILE" ;;
    cache:--drop) words="" ;;
    cache:--unpin) words="" ;;
    cache:--prove) words="" ;;
    cache:--limit) words="" ;;
    top:--interval) words="" ;;
    sample:--layers) words="" ;;
    sample:--hidden) words="" ;;
    sample:--size) words="" ;;
    sample:--seed) words="" ;;
    *) return 1 ;;
  esac
}
# END generated

# Runs stfs for at most two seconds: the target may be in a mount that does not answer.
_stfs_list() {
  timeout -k 1 2 stfs "$@" 2>/dev/null </dev/null
}

# Adds the lines of standard input that start with a word to COMPREPLY, quoted for the shell. Omits names with
# a backslash: stfs escapes them, so the shell would pass another name. Omits names
# that begin with a dash: they would be options.
_stfs_offer() {
  local name
  while IFS= read -r name; do
    [[ $name == "$1"* && $name != *\\* && $name != -* && $name != '""' ]] && COMPREPLY+=("$(printf '%q' "$name")")
  done
}

# Offers the tensors of an archive, an index, or a directory with a model. Opens no other file.
_stfs_tensors() {
  [[ $1 == *.safetensors || $1 == *.safetensors.index.json || -d $1 ]] || return
  _stfs_offer "$2" < <(_stfs_list ls --names -- "$1")
}

_stfs_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$1")
}

_stfs() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
  local options="" words="" kinds=() kind target="" given=0 i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "$_stfs_verbs help --help --version" -- "$current")
    return
  elif [[ $verb == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$_stfs_verbs" -- "$current")
    return
  fi
  _stfs_verb "$verb" || return
  if _stfs_value "$verb" "$previous"; then
    [[ $words != FILE ]] || { _stfs_files "$current"; return; }
    [[ $words != DEVICE ]] || { _stfs_offer "$current" < <(_stfs_list devices --names); return; }
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    return
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    return
  fi
  # The first word that is no option, nor the value of one, is the target.
  for ((i = 2; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} != -* ]] && ! _stfs_value "$verb" "${COMP_WORDS[i-1]}" || continue
    [[ -n $target ]] || target=${COMP_WORDS[i]}
    ((++given))
  done
  kind=${kinds[given]:-}
  [[ -n $kind || ${#kinds[@]} -eq 0 || ${kinds[-1]} != *... ]] || kind=${kinds[-1]}
  case $kind in
    file*) _stfs_files "$current" ;;
    mount*) _stfs_offer "${current//\\/}" < <(_stfs_list mounts --names) ;;
    tensor*)
      # As it was typed, so that quotes and a tilde mean what they mean to the shell.
      target=${target/#\~\//$HOME/}
      target=${target//\\/}
      target=${target#[\"\']}
      _stfs_tensors "${target%[\"\']}" "${current//\\/}" ;;
  esac
}

complete -F _stfs stfs
