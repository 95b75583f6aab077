# Completion of exec-server for fish; the candidates come from `exec-server __complete`.
function __exec_server_candidates
    set -l words (commandline -opc)
    # A quote that is still open is closed for the question.
    set -l current (commandline -ct)
    set -l plain (string unescape -- $current $current'"' $current"'")
    exec-server __complete (count $words) -- $words "$plain[1]" 2>/dev/null
end
complete -c exec-server -f -a '(__exec_server_candidates)'
complete -c exec-server -n '__fish_seen_subcommand_from cp sandbox' -F
