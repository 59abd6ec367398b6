# What up, down and with share. Not run by itself.
#
# Each service-NAME.sh defines how one server is installed, started, checked for an answer, and stopped, in functions
# NAME_install, NAME_start, NAME_ready, NAME_stop and NAME_env. They find their first port in PORT. A service of several
# nodes has NAME_live and NAME_node too; what is recorded below for NAME is recorded for each NAME/NODE.
# shellcheck shell=bash

set -euo pipefail

ALL_SERVICES=(postgres redis rabbitmq s3 cassandra opensearch)
EXTRA_SERVICES=(cassandra3 minio)          # not in 'all': three nodes, and a long build

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${XDG_CACHE_HOME:-${HOME:?}/.cache}/restante-services
: "${RESTANTE_SERVICES_HOME:=$CACHE}"
: "${RESTANTE_SERVICES_DOWNLOADS:=$CACHE/dl}"
: "${RESTANTE_SERVICES_TIMEOUT:=180}"      # seconds to wait for one server to answer
: "${RESTANTE_SERVICES_JAVA:=java}"        # Java 17 for cassandra and opensearch

DL=$RESTANTE_SERVICES_DOWNLOADS            # what was downloaded or assembled
DATA=$RESTANTE_SERVICES_HOME/data          # one folder a service; --fresh and --purge delete it
RUN=$RESTANTE_SERVICES_HOME/run            # pid, port, log and generated configuration of each service

# For each service: its default first port, and how many ports it uses from there on.
declare -A PORT_DEFAULT=([postgres]=15432 [redis]=16379 [rabbitmq]=15671 [s3]=19000 [minio]=19010 [cassandra]=19042 [cassandra3]=19142 [opensearch]=19200)
declare -A PORT_COUNT=([postgres]=1 [redis]=2 [rabbitmq]=4 [s3]=1 [minio]=1 [cassandra]=4 [cassandra3]=6 [opensearch]=2)
PORT=

say() { printf 'services: %s\n' "$*" >&2; }
die() { printf 'services: error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
usage() { sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//;p}' "$0"; }

for folder in "$RESTANTE_SERVICES_HOME" "$DL"; do
  case $folder in
    *[!A-Za-z0-9._/@+-]*) die "a server's configuration may not take every character of '$folder': choose another folder" ;;
    /*) ;;
    *) die "'$folder' is no absolute path" ;;
  esac
done

check_name() {
  local n
  for n in "${ALL_SERVICES[@]}" "${EXTRA_SERVICES[@]}"; do [ "$n" != "$1" ] || return 0; done
  die "no service '$1'; there are: ${ALL_SERVICES[*]} ${EXTRA_SERVICES[*]}, and 'all' for the first ${#ALL_SERVICES[@]}"
}

# Only one up or down at a time for one service in one services home.
lock_service() {
  mkdir -p "$RUN/$1"
  exec 9>"$RUN/$1/lock"
  flock -w 600 9 || die "$1: another up or down has held the lock for 10 minutes"
}

# One installation at a time: services homes share the downloads.
install_service() {
  mkdir -p "$DL"
  exec 8>"$DL/$1.lock"
  flock -w 3600 8 || die "$1: another installation has held the lock for an hour"
  "${1}_install"
  exec 8>&-
}

# --- processes -------------------------------------------------------------------------------------------------------
# A pid file holds "PID STARTTIME": a pid that was given to another process in the meantime has another start time.
start_time() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  # A zombie is gone, unless other threads of its process are still ending.
  case $stat in Z*) compgen -G "/proc/$1/task/*[0-9]" | grep -qv "/$1\$" || return 1 ;; esac
  # shellcheck disable=SC2086
  set -- $stat
  printf '%s' "${20}"
}

# record_pid FILE PID
record_pid() { printf '%s %s\n' "$2" "$(start_time "$2")" >"$1"; }

# recorded_pid FILE : the pid in it, if its process still runs.
recorded_pid() {
  local pid started
  [ -f "$1" ] || return 1
  read -r pid started <"$1" || return 1
  [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ] && printf '%s' "$pid"
}

live_pid() { recorded_pid "$RUN/$1/pid"; }

# service_live NAME : its pids, if all of it runs.
service_live() {
  if declare -F "${1}_live" >/dev/null; then "${1}_live"; else live_pid "$1"; fi
}

# spawn NAME COMMAND... : runs it in a session of its own, so that Ctrl-C reaches it only through down. A signal that
# arrives before its pid is recorded is handled afterwards.
spawn() {
  local name=$1 interrupted='' pid; shift
  trap 'interrupted=1' INT TERM HUP
  setsid "$@" </dev/null >>"$RUN/$name/log" 2>&1 9>&- &
  pid=$!
  record_pid "$RUN/$name/pid" "$pid" || true # ended already: the next lines report it
  trap - INT TERM HUP
  [ -z "$interrupted" ] || exit 130
  sleep 0.1
  live_pid "$name" >/dev/null || show_log_and_die "$name" "it ended at once"
}

show_log_and_die() {
  local log
  for log in "$RUN/$1/log" "$RUN/$1"/*/log; do
    [ -s "$log" ] || continue
    say "$1: last lines of $log:"
    tail -n 25 "$log" >&2 || true
  done
  die "$1: $2"
}

# stop_pid NAME SIGNAL SECONDS
stop_pid() {
  local name=$1 sig=$2 limit=$3 pid
  pid=$(live_pid "$name") || return 0
  kill "-$sig" "$pid" 2>/dev/null || true
  kill -CONT "$pid" 2>/dev/null || true # a test may have left it stopped
  local end=$((SECONDS + limit))
  while live_pid "$name" >/dev/null; do
    if [ "$SECONDS" -ge "$end" ]; then
      say "$name: still there after $limit s, killing it"
      kill -KILL "$pid" 2>/dev/null || true
      sleep 0.5
      break
    fi
    sleep 0.1
  done
}

# wait_ready NAME [CHECK...] : until the check, or else NAME_ready, succeeds.
wait_ready() {
  local name=$1 end=$((SECONDS + RESTANTE_SERVICES_TIMEOUT)); shift
  [ $# -gt 0 ] || set -- "${name}_ready"
  until "$@" >/dev/null 2>&1; do
    service_live "$name" >/dev/null || show_log_and_die "$name" "it ended while starting"
    [ "$SECONDS" -lt "$end" ] || show_log_and_die "$name" "no answer within $RESTANTE_SERVICES_TIMEOUT s"
    sleep 0.2
  done
  # The answer may come from another server, to which ours has lost its port.
  service_live "$name" >/dev/null || show_log_and_die "$name" "it ended while starting"
}

# PostgreSQL and OpenSearch refuse to run as root. For root, a user namespace shows them the uid of nobody while every
# file still belongs to root. Where root can't create one, as in many containers, they run as nobody, who then owns
# their folders.
# plain_user NAME PATH... : sets PLAIN to the prefix of the server's command; the command must be able to access the paths.
PLAIN=()
plain_user() {
  local name=$1 uid gid path; shift
  PLAIN=()
  [ "$(id -u)" = 0 ] || return 0
  uid=$(id -u nobody) gid=$(id -g nobody)
  PLAIN=(unshare --user "--map-user=$uid" "--map-group=$gid" --)
  ! "${PLAIN[@]}" true 2>/dev/null || return 0
  PLAIN=(setpriv "--reuid=$uid" "--regid=$gid" --clear-groups --)
  chown -R "$uid:$gid" "$DATA/$name" "$RUN/$name"
  for path in "$DATA/$name" "$RUN/$name" "$@"; do
    "${PLAIN[@]}" test -x "$path" 2>/dev/null ||
      die "$name refuses root, and nobody can't reach $path: choose a RESTANTE_SERVICES_HOME that everybody can enter, or run as an ordinary user"
  done
}

# make_certificates DIR : a certificate authority for tests (ca.pem), and what it has signed: server.pem for localhost and
# client.pem for the user restante_certificate, each with its key. other-ca.pem has signed nothing.
make_certificates() {
  local d=$1 name
  [ ! -f "$d/done" ] || return 0
  have openssl || need_debian "have openssl" openssl
  rm -rf "$d"
  mkdir -p "$d"
  local new=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650)
  for name in ca other-ca; do
    "${new[@]}" -subj "/CN=restante test $name" -keyout "$d/$name.key" -out "$d/$name.pem" 2>>"$d/log"
  done
  local signed=("${new[@]}" -CA "$d/ca.pem" -CAkey "$d/ca.key" -addext 'basicConstraints=critical,CA:FALSE')
  "${signed[@]}" -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout "$d/server.key" -out "$d/server.pem" 2>>"$d/log"
  "${signed[@]}" -subj /CN=restante_certificate -keyout "$d/client.key" -out "$d/client.pem" 2>>"$d/log"
  chmod 600 "$d"/*.key
  : >"$d/done"
}

# --- ports -----------------------------------------------------------------------------------------------------------
# Where --port-auto looks: below the ports that the kernel gives to outgoing connections (32768 and up).
PORT_AUTO_FROM=20000
PORT_AUTO_UNTIL=32000

# port_open ADDRESS PORT
port_open() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# ports_free FIRST COUNT [ADDRESS]
ports_free() {
  local port
  for ((port = $1; port < $1 + $2; port++)); do ! port_open "${3:-127.0.0.1}" "$port" || return 1; done
}

# The port that a service runs on, or ran on last: down forgets it with --purge.
find_port() { PORT=$(cat "$RUN/$1/port" 2>/dev/null) && [ -n "$PORT" ]; }

# choose_port NAME AUTO : where to start it. RESTANTE_<NAME>_PORT is a port of your choice; with AUTO=1 it is a free one.
# Otherwise a server gets the port that it had before, so that clients find it again, and we find what it may have left
# behind.
choose_port() {
  local name=$1 auto=$2 count=${PORT_COUNT[$1]} variable=RESTANTE_${1^^}_PORT
  if [ "$auto" = 1 ]; then
    if ! find_port "$name" || ! ports_free "$PORT" "$count"; then free_port "$count"; fi
  elif [ -n "${!variable:-}" ]; then
    PORT=${!variable}
  else
    find_port "$name" || PORT=${PORT_DEFAULT[$name]}
  fi
  case $PORT in '' | *[!0-9]*) die "$variable is '$PORT', which is no port" ;; esac
  printf '%s\n' "$PORT" >"$RUN/$name/port"
}

# Tries ports at random, so that two concurrent callers find different ones.
free_port() {
  local try
  for ((try = 0; try < 100; try++)); do
    PORT=$((PORT_AUTO_FROM + RANDOM % (PORT_AUTO_UNTIL - PORT_AUTO_FROM)))
    ! ports_free "$PORT" "$1" || return 0
  done
  die "no $1 free ports on 127.0.0.1 from $PORT_AUTO_FROM to $PORT_AUTO_UNTIL"
}

# need_free_ports NAME FIRST COUNT [ADDRESS] : waits for them a little, since a server stopped a moment ago may still hold
# its port.
need_free_ports() {
  local end=$((SECONDS + 10)) address=${4:-127.0.0.1}
  until ports_free "$2" "$3" "$address"; do
    [ "$SECONDS" -lt "$end" ] ||
      die "$1: another process has port $2 on $address (or one of the $3 from there): stop it, set RESTANTE_${1^^}_PORT, or use --port-auto"
    sleep 0.3
  done
}

# --- installing ------------------------------------------------------------------------------------------------------
# need_debian TEST PACKAGE... : installs Debian's packages, unless the test (a command and its arguments) finds that
# they are there.
need_debian() {
  local check=$1 sudo=(); shift
  ! $check || return 0
  have apt-get || die "$* is missing and there is no apt-get: install it by hand (these are Debian's names)"
  if [ "$(id -u)" != 0 ]; then
    sudo=(sudo -n)
    "${sudo[@]}" true 2>/dev/null || die "$* is missing; as root: apt-get install --no-install-recommends $*"
  fi
  say "installing Debian's $*"
  # RUNLEVEL=1 keeps the packages' own scripts from starting their daemons.
  local apt=("${sudo[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
  mkdir -p "$RUN"
  "${apt[@]}" install -y --no-install-recommends "$@" >"$RUN/apt.log" 2>&1 ||
    { "${apt[@]}" update >>"$RUN/apt.log" 2>&1 &&
      "${apt[@]}" install -y --no-install-recommends "$@" >>"$RUN/apt.log" 2>&1; } ||
    { tail -n 15 "$RUN/apt.log" >&2; die "apt-get could not install $*: if its mirror is away, try again later or set another one in /etc/apt"; }
  $check || die "apt-get installed $*, but what is wanted is still missing ($check)"
}

need_java() {
  [ "$RESTANTE_SERVICES_JAVA" != java ] || need_debian "have java" openjdk-17-jre-headless
  need_debian "have mvn" maven
  local v
  v=$("$RESTANTE_SERVICES_JAVA" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')
  case $v in
    11 | 17) ;;
    *) die "'$RESTANTE_SERVICES_JAVA' is Java '$v' and these servers want 17 (or 11): set RESTANTE_SERVICES_JAVA to such a java program" ;;
  esac
}

# assemble DIR POM : all jars of a pom and their dependencies, all or nothing.
assemble() {
  local dir=$1 pom=$2
  [ ! -f "$dir/.complete" ] || return 0
  rm -rf "$dir" "$dir.part"
  mkdir -p "$dir.part" "$RUN"
  say "assembling $(basename "$dir") with Maven (a few minutes the first time)"
  mvn -B -q -f "$pom" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$dir.part/lib" >"$RUN/mvn.log" 2>&1 ||
    { tail -n 15 "$RUN/mvn.log" >&2; die "Maven could not assemble $(basename "$dir"): if its repository is away, try again later or set a mirror in ~/.m2/settings.xml"; }
  mv "$dir.part" "$dir"
}

# go_program FILE PACKAGE@VERSION
go_program() {
  [ ! -x "$1" ] || return 0
  have go || die "$2 is built with Go, and go is not on PATH: install Go 1.21 or later (https://go.dev/dl; Debian 12's own is too old)"
  mkdir -p "$1.part" "$RUN"
  say "building $2 with Go (minutes the first time)"
  GOBIN=$1.part go install "$2" >"$RUN/go.log" 2>&1 ||
    { tail -n 15 "$RUN/go.log" >&2; die "go install $2 failed: if the module proxy is away, try again later or name another one in GOPROXY"; }
  mv "$1.part/$(basename "$1")" "$1"
  rmdir "$1.part"
}

for file in "$HERE"/service-*.sh; do
  # shellcheck source=/dev/null
  . "$file"
done
