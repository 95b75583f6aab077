//! Examples in the help of client commands.

pub const RUN: &str = "\
Examples:
  exec-server run ws://127.0.0.1:7777 -- make test
  exec-server run box -- sh -c 'wc -l < input.csv' < input.csv
      `box` is listed in environments.toml; stdin is passed on unless it is a terminal
  exec-server run -it box -- vim notes.txt
      Ctrl-P Ctrl-Q detaches from it, Enter ~. leaves a lost connection, Enter ~? lists such keys;
      `exec-server attach box ID` attaches again
  exec-server run -d --name nightly box -- ./nightly.sh
      prints the id for ps, logs, attach, wait and kill
  exec-server run --memory 2g --cpus 1.5 --pids 200 box -- make -j
  exec-server run --sandbox workspace-write -w /srv/project box -- npm test
  exec-server run 'stdio:ssh host exec-server --listen stdio' -- uname -a
  exec-server run --remote https://relay.example.org env:build-1 -- make test
      wherever build-1 is; the token comes from EXEC_SERVER_REMOTE_TOKEN";

pub const SHELL: &str = "\
Examples:
  exec-server shell box
  exec-server shell -w /srv/project env:build-1
  echo 'uname -a' | exec-server shell ws://127.0.0.1:7777";

pub const PS: &str = "\
Examples:
  exec-server ps
  exec-server ps -a box
      also what has ended and can still be read
  exec-server ps --json box | jq '.[].processId'
  exec-server kill box $(exec-server ps -q box)";

pub const ATTACH: &str = "\
Examples:
  exec-server attach box nightly
  exec-server attach --take-over box 3f2a
      the beginning of an id is enough if only one process has it
  exec-server attach -n --no-replay box nightly
      only what comes next, and without stdin";

pub const LOGS: &str = "\
Examples:
  exec-server logs -f box nightly
  exec-server logs -n 20 nightly
  exec-server logs --since 10m --timestamps nightly";

pub const KILL: &str = "\
Examples:
  exec-server kill nightly hourly
      SIGTERM, SIGKILL after 5 s, and returns when both have ended
  exec-server kill --grace 30s box nightly
  exec-server kill -9 nightly
  exec-server kill -s HUP box nightly";

pub const WAIT: &str = "\
Examples:
  id=$(exec-server run -d -- make test); exec-server wait \"$id\"
  exec-server wait box build test deploy
      prints three codes, and exits with the last";

pub const CP: &str = "\
Examples:
  exec-server cp notes.txt box:/tmp/
  exec-server cp -r box:/var/log/app logs
  exec-server cp -rp src ws://127.0.0.1:7777:/srv/src
  exec-server cp box:/etc/hosts other:hosts
  exec-server cp notes.txt env:build-1:/tmp/
  pg_dump db | exec-server cp - box:/srv/db.sql
  exec-server cp box:/srv/db.sql - | psql db
A path without a target is one of this machine; put ./ before a name with a colon.";

pub const LS: &str = "\
Examples:
  exec-server ls box:
      the working directory of the server
  exec-server ls -l box:/etc box:/srv
  exec-server ls --json :/tmp";

pub const CAT: &str = "\
Examples:
  exec-server cat box:/etc/os-release
  exec-server cat :/var/log/a.log :/var/log/b.log
  exec-server cat 'stdio:ssh host exec-server --listen stdio:/etc/hosts'";

pub const GREP: &str = "\
Examples:
  exec-server grep TODO box:src
  exec-server grep -F -C2 'fn main()' box:/srv/project
  exec-server grep -il -T rust password box:/srv other:/srv
  exec-server grep --hidden --no-ignore -g '*.conf' listen box:/etc";

pub const FIND: &str = "\
Examples:
  exec-server find box:src
  exec-server find -t f box:/srv '*.rs' 'docs/**/*.md'
  exec-server find -0 --hidden box:. | xargs -0 ls -d
  exec-server find --json box:/var/log '*.log'";

pub const MCP: &str = "\
Examples:
  exec-server mcp box
      started by an agent, which speaks MCP over its stdin and stdout
  exec-server mcp --print-config claude --root /srv/project --sandbox workspace-write box
      prints what to paste into the configuration of an agent: claude, codex, cursor or vscode
  exec-server mcp --read-only --listen 127.0.0.1:7800 env:build-1";

pub const E2B: &str = "\
Examples:
  exec-server e2b box
      then, for E2B SDKs on this machine: export E2B_DEBUG=true
  exec-server e2b --listen 127.0.0.1:7900 env:build-1
      then: export E2B_DEBUG=true E2B_SANDBOX_URL=http://127.0.0.1:7900
  exec-server e2b --listen 127.0.0.1:7900 --http-token-file token box
      then: export E2B_SANDBOX_URL=http://127.0.0.1:7900 E2B_API_URL=http://127.0.0.1:7900 E2B_API_KEY=$(cat token)";

pub const WATCH: &str = "\
Examples:
  exec-server watch -r box:/srv/project
  exec-server watch -1 box:/var/run/ready && echo changed
  exec-server watch -r --json box:src | jq .path";

pub const REPLACE: &str = "\
Examples:
  exec-server replace box:/etc/app.conf 'port = 80' 'port = 8080'
      changes nothing if the text is missing or not unique, and says where it is
  exec-server replace --all --dry-run box:src/main.rs old_name new_name";

pub const INFO: &str = "\
Examples:
  exec-server info
  exec-server info env:build-1
  exec-server info --json box | jq .host";

pub const DIAL: &str = "\
Examples:
  exec-server dial env:build-1
      a program writes requests to its stdin and reads replies and notifications from its stdout
  echo '{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"me\"}}' | (cat; sleep 1) | exec-server dial box
      the reply to one request; end of stdin ends the connection at once
  exec-server dial --token-file token --ca-file ca.pem wss://build-1.example.org:7777";

const TARGET: &str = "\
TARGET is a URL (ws://, wss://, unix://), env:NAME for an environment at a registry, `stdio:COMMAND ARGS` for a server that
is started and spoken to over its stdio, or a name from environments.toml. Without one, the first of these counts:
$EXEC_SERVER_URL; the default of environments.toml, if there is such a file; the variables CODEX_EXEC_SERVER_NOISE_…;
$CODEX_EXEC_SERVER_URL.";

/// The target syntax, followed by examples.
pub fn long(examples: &str) -> String {
    format!("{TARGET}\n\n{examples}")
}

pub const DOCTOR: &str = "\
Examples:
  exec-server doctor
  exec-server doctor --json ws://127.0.0.1:7777
      what a server says about its machine";

pub const SCHEMA: &str = "\
Examples:
  exec-server schema > protocol.schema.json
  exec-server schema --format markdown
      the same as tables";

pub const NODES: &str = "\
Examples:
  EXEC_SERVER_ADMIN_TOKEN=xs_admin_… exec-server nodes --remote https://meet.example.org";

pub const ENVIRONMENTS: &str = "\
Examples:
  exec-server environments
      where the rendezvous runs
  EXEC_SERVER_ADMIN_TOKEN=xs_admin_… exec-server environments --remote https://relay.example.org";

pub const TOKEN: &str = "\
Examples:
  exec-server token create --environment build-1 --role executor --label 'rack 4'
  exec-server token list
  exec-server token revoke tok_…";

pub const KNOWN_HOSTS: &str = "\
Examples:
  exec-server known-hosts
  exec-server known-hosts forget build-1";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::cli::Arguments;

    #[test]
    fn the_help_of_every_command_has_examples() {
        let mut missing = Vec::new();
        let mut rest = vec![(String::new(), Arguments::command())];
        while let Some((path, mut command)) = rest.pop() {
            let path = format!("{path} {}", command.get_name());
            for help in [command.render_help(), command.render_long_help()] {
                if !command.is_hide_set() && !help.to_string().contains("Examples:") {
                    missing.push(path.clone());
                }
            }
            let more = command.get_subcommands().filter(|more| more.get_name() != "help");
            rest.extend(more.map(|more| (path.clone(), more.clone())));
        }
        assert!(missing.is_empty(), "without examples: {missing:?}");
    }
}
