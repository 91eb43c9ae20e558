# Completion of stfs for bash. Verbs, options, files, and for `cat`, `ls`, `slice`, `verify` and `put` the names of the tensors.

# Puts the names of the tensors of an archive that start with the current word into COMPREPLY, quoted for
# the shell. Names with a backslash are left out: they are escaped in this output and would not be found.
_stfs_tensors() {
  local name
  while IFS= read -r name; do
    [[ $name == "$2"* && $name != *\\* && $name != '""' ]] && COMPREPLY+=("$(printf '%q' "$name")")
  done < <(stfs ls --names -- "$1" 2>/dev/null)
}

_stfs() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
  local verbs="ls info cat slice verify put apply recover upload devices serve sample help" options="" word target="" given=0 i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$current")
    return
  fi
  case $verb in
    ls) options="--sort --reverse --bytes --names --json --help" ;;
    info) options="--bytes --json --help" ;;
    cat) options="--force --help" ;;
    slice) options="--output --npy --raw --force --json --help" ;;
    verify) options="--record --against --finite --threads --json --help" ;;
    put) options="--from-tensor --raw --durability --nolock --wait --json --help" ;;
    apply) options="--dry-run --durability --nolock --wait --json --help" ;;
    recover) options="--dry-run --force --json --help" ;;
    upload) options="--device --select --dtype --verify --dry-run --json --help" ;;
    devices) options="--json --help" ;;
    serve) options="--device --socket --select --dtype --verify --status --json --help" ;;
    sample) options="--layers --hidden --size --seed --force --json --help" ;;
    help) mapfile -t COMPREPLY < <(compgen -W "ls info cat slice verify put apply recover upload devices serve sample" -- "$current"); return ;;
    *) return ;;
  esac
  case $verb:$previous in
    ls:--sort) mapfile -t COMPREPLY < <(compgen -W "name size offset" -- "$current"); return ;;
    put:--durability | apply:--durability)
      mapfile -t COMPREPLY < <(compgen -W "power process" -- "$current"); return ;;
    upload:-d | upload:--device | serve:-d | serve:--device)
      mapfile -t COMPREPLY < <(compgen -W "cpu cuda:0" -- "$current"); return ;;
    upload:--dtype | serve:--dtype)
      mapfile -t COMPREPLY < <(compgen -W "BF16 F16 F32 F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ" -- "$current"); return ;;
    upload:--select | serve:--select) return ;;
    slice:-o | slice:--output | verify:--record | verify:--against | serve:--socket | serve:--status)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    put:--wait | apply:--wait | put:--from-tensor | verify:--threads) return ;;
    sample:--layers | sample:--hidden | sample:--size | sample:--seed) return ;;
  esac
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    return
  fi
  # The first word that is no option, nor the value of one, is the target.
  for ((i = 2; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* || ${COMP_WORDS[i-1]} == @(-o|-d|--@(device|select|dtype|socket|status|sort|from-tensor|durability|wait|output|record|against|threads)) ]] && continue
    [[ -z $target ]] && target=$word
    ((++given))
  done
  [[ $verb != devices ]] || return
  # The target; the delta of apply; the sources of upload and serve; the file that put takes after the name.
  if [[ -z $target || $verb == @(apply|upload|serve) || ($verb == put && given -gt 1) ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  elif [[ $verb == @(cat|ls|slice|verify|put) ]]; then
    # As it was typed, so that quotes and a tilde mean what they mean to the shell.
    target=${target/#\~\//$HOME/}
    target=${target//\\/}
    target=${target#[\"\']}
    _stfs_tensors "${target%[\"\']}" "${current//\\/}"
  fi
}

complete -F _stfs stfs
