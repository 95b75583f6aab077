#compdef exec-server
# Completion of exec-server for zsh; the candidates come from `exec-server __complete`.
_exec_server() {
    local -a found open closed
    local candidate
    # The words without their quotes; a quote that is still open is in QIPREFIX.
    local -a plain=("${(@Q)words}")
    [[ -n $QIPREFIX ]] && plain[CURRENT]=${(Q)IPREFIX}${(Q)PREFIX}
    found=("${(@f)$("${words[1]}" __complete $((CURRENT - 1)) -- "${(@)plain}" 2>/dev/null)}")
    for candidate in "${found[@]}"; do
        case "$candidate" in
            '') ;;
            *[/:=]) open+=("$candidate") ;;
            *) closed+=("$candidate") ;;
        esac
    done
    if (( ${#open} + ${#closed} == 0 )); then
        _files
        return
    fi
    (( ${#open} )) && compadd -S '' -- "${open[@]}"
    (( ${#closed} )) && compadd -- "${closed[@]}"
}
if [ "$funcstack[1]" = "_exec_server" ]; then
    _exec_server "$@"
else
    compdef _exec_server exec-server
fi
