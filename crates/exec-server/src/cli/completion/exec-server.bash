# Completion of exec-server for bash; the candidates come from `exec-server __complete`.

# Splits a line into `words` as the shell would, and expands nothing. `last` is where the last word begins, and `quote`
# is the quote that is open at the end.
_exec_server_split() {
    local line=$1 word= char next i begun=
    words=() quote= last=0
    for ((i = 0; i < ${#line}; i++)); do
        char=${line:i:1}
        if [[ -z $quote && $char == [[:space:]] ]]; then
            [[ -n $begun ]] && words+=("$word")
            word= begun= last=$((i + 1))
            continue
        fi
        begun=1
        if [[ $char == "$quote" ]]; then
            quote=
        elif [[ $quote == "'" ]]; then
            word+=$char
        elif [[ $char == "\\" ]]; then
            i=$((i + 1))
            next=${line:i:1}
            [[ -n $quote && $next != [\"\\\$\`] ]] && word+=$char
            word+=$next
        elif [[ -z $quote && $char == [\"\'] ]]; then
            quote=$char
        else
            word+=$char
        fi
    done
    words+=("$word")
}

# Quotes a name for the command line, which may have an open quote; names of a server must not become syntax.
_exec_server_quote() {
    local single="'\\''" history="\"'!'\""
    case $quote in
        "'") quoted=${1//\'/"$single"} ;;
        '"')
            quoted=${1//\\/\\\\}
            quoted=${quoted//\"/\\\"}
            quoted=${quoted//\$/\\\$}
            quoted=${quoted//\`/\\\`}
            quoted=${quoted//\!/"$history"}
            ;;
        *) printf -v quoted %q "$1" ;;
    esac
    # Readline closes the quote only if the name does not end with one.
    if [[ -n $quote && $quoted == *"$quote" ]]; then quoted+=$quote; fi
}

_exec_server() {
    local line=${COMP_LINE:0:COMP_POINT} candidate word head quote last quoted
    local -a words=() line_words=() names=()
    _exec_server_split "$line"
    word=${line:last}
    line_words=("${words[@]}")
    COMPREPLY=()
    # Readline replaces only what it calls the word, which begins after a quote or a break such as a colon.
    [[ $word == *"$2" ]] || return
    local open=$quote
    _exec_server_split "${word:0:${#word}-${#2}}"
    head=${words[0]} quote=$open
    while IFS= read -r candidate; do
        [[ $candidate == "$head"* ]] || continue
        names+=("$candidate")
        candidate=${candidate:${#head}}
        quoted=
        [[ -n $candidate ]] && _exec_server_quote "$candidate"
        COMPREPLY+=("$quoted")
    done < <("$1" __complete "$((${#line_words[@]} - 1))" -- "${line_words[@]}" 2>/dev/null)
    if [[ ${#names[@]} -eq 1 && ${names[0]} == *[/:=] ]]; then
        type compopt &>/dev/null && compopt -o nospace
    fi
}
complete -o default -F _exec_server exec-server
