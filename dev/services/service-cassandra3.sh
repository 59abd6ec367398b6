# Three nodes of the Cassandra that `cassandra` installs, on 127.0.0.1, 127.0.0.2 and 127.0.0.3, one data center, for
# replication factor 3. Tests stop, kill and replace single nodes with the program that RESTANTE_CASSANDRA3_NODE names.
# Ports: native protocol, storage, storage over TLS (the same on each address), JMX of each node on 127.0.0.1.
# shellcheck shell=bash
: "${RESTANTE_CASSANDRA3_HEAP:=512m}"
CASSANDRA3_NODES=(1 2 3)

# The same files under the same lock as those of one node.
cassandra3_install() { (install_service cassandra); }

cassandra3_start() {
  local n
  # The rest of a cluster that has lost a node starts again with it.
  cassandra3_stop
  for n in "${CASSANDRA3_NODES[@]}"; do need_free_ports cassandra3 "$PORT" 3 "127.0.0.$n"; done
  need_free_ports cassandra3 $((PORT + 3)) 3
  cassandra3_write_node_program
  for n in "${CASSANDRA3_NODES[@]}"; do cassandra3_node_start "$n"; done
}

# cassandra3_node_start NODE [replace] : every node is a seed and has its tokens from here, so they start concurrently. One
# that replaces another is neither: it takes over that one's tokens, and streams its data from the others.
cassandra3_node_start() {
  local n=$1 run=$RUN/cassandra3/$1 seeds=127.0.0.1,127.0.0.2,127.0.0.3 ring options=()
  ring="initial_token: $(cassandra3_tokens "$n")
auto_bootstrap: false"
  if [ "${2:-}" = replace ]; then
    seeds=127.0.0.$((n % 3 + 1)),127.0.0.$(((n + 1) % 3 + 1)) ring='auto_bootstrap: true'
    options=("-Dcassandra.replace_address_first_boot=127.0.0.$n")
  fi
  mkdir -p "$run"
  [ ! -f "$run/log" ] || mv "$run/log" "$run/log.before"
  cassandra_configure "$run" "$DATA/cassandra3/$n" "127.0.0.$n" "$seeds" <<CONF
num_tokens: 8
$ring
paxos_variant: v2
paxos_state_purging: repaired
commitlog_total_space: 256MiB
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
file_cache_size: 32MiB
key_cache_size: 8MiB
CONF
  cassandra_spawn "cassandra3/$n" "$RESTANTE_CASSANDRA3_HEAP" 256m $((PORT + 2 + n)) \
    -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=2000 "${options[@]}"
}

# cassandra3_tokens NODE : every third of 24 tokens that divide the ring evenly.
cassandra3_tokens() {
  local i tokens=()
  for ((i = 0; i < 8; i++)); do tokens+=($((-9223372036854775807 + (3 * i + $1 - 1) * 768614336404564650))); done
  (IFS=,; printf '%s' "${tokens[*]}")
}

# The node answers, and has seen the two others.
cassandra3_node_ready() {
  local n=$1 other
  cassandra_answers "127.0.0.$n" || return 1
  for other in "${CASSANDRA3_NODES[@]}"; do
    [ "$other" = "$n" ] || ! live_pid "cassandra3/$other" >/dev/null ||
      grep -q "/127.0.0.$other:$((PORT + 1)) \(is\|has restarted,\) now UP" "$RUN/cassandra3/$n/log" || return 1
  done
}
cassandra3_ready() {
  local n
  for n in "${CASSANDRA3_NODES[@]}"; do cassandra3_node_ready "$n" || return 1; done
}

cassandra3_live() {
  local n pids=()
  for n in "${CASSANDRA3_NODES[@]}"; do pids+=("$(live_pid "cassandra3/$n")") || return 1; done
  printf '%s' "${pids[*]}"
}

cassandra3_stop() {
  local n
  for n in "${CASSANDRA3_NODES[@]}"; do stop_pid "cassandra3/$n" TERM 90 & done
  wait
}

# The actions of `node`.
cassandra3_node() {
  local action=$1 n=$2 name=cassandra3/$2
  case $n in 1 | 2 | 3) ;; *) die "cassandra3 has the nodes 1, 2 and 3, and no '$n'" ;; esac
  case $action in
    start) cassandra3_node_start "$n"; wait_ready "$name" cassandra3_node_ready "$n" ;;
    stop) stop_pid "$name" TERM 90 ;;
    replace) cassandra3_node_replace "$n" ;;
    repair) cassandra3_tool "$n" repair --full ;;
    repair-paxos) cassandra3_tool "$n" repair --paxos-only ;;
    *) die "a node of cassandra3 can't '$action'" ;;
  esac
}

# An empty node replaces the one that had its address, and streams the data of the two others.
cassandra3_node_replace() {
  stop_pid "cassandra3/$1" KILL 20
  rm -rf "$DATA/cassandra3/$1"
  cassandra3_node_start "$1" replace
  wait_ready "cassandra3/$1" cassandra3_node_ready "$1"
}

# cassandra3_tool NODE ARGUMENT... : Cassandra's nodetool.
cassandra3_tool() {
  local n=$1 run=$RUN/cassandra3/$1; shift
  "$RESTANTE_SERVICES_JAVA" -Xmx128m "${CASSANDRA_JAVA_OPENS[@]}" -Dcassandra.config="file://$run/cassandra.yaml" \
    -Dlogback.configurationFile="file://$run/logback.xml" -Dcassandra.storagedir="$run/tool" -Duser.home="$run/tool" \
    -cp "$DL/cassandra-$CASSANDRA_VERSION/lib/*" org.apache.cassandra.tools.NodeTool -h 127.0.0.1 -p $((PORT + 2 + n)) "$@" \
    >>"$run/tool.log" 2>&1 || { tail -n 15 "$run/tool.log" >&2; die "cassandra3: node $n could not $*"; }
}

cassandra3_write_node_program() {
  local program=$RUN/cassandra3/node
  cat >"$program" <<CONF
#!/bin/sh
export RESTANTE_SERVICES_HOME='$RESTANTE_SERVICES_HOME' RESTANTE_SERVICES_DOWNLOADS='$DL'
export RESTANTE_SERVICES_JAVA='$RESTANTE_SERVICES_JAVA' RESTANTE_CASSANDRA3_HEAP='$RESTANTE_CASSANDRA3_HEAP'
exec '$HERE/node' cassandra3 "\$@"
CONF
  chmod +x "$program"
}

cassandra3_env() {
  echo "export RESTANTE_CASSANDRA3_URL=cassandra://127.0.0.1:$PORT,127.0.0.2:$PORT,127.0.0.3:$PORT"
  echo "export RESTANTE_CASSANDRA3_NODE=$RUN/cassandra3/node RESTANTE_CASSANDRA3_DATACENTER=datacenter1"
  # Tests of the engine run on these nodes.
  echo "export RESTANTE_CASSANDRA_URL=cassandra://127.0.0.1:$PORT,127.0.0.2:$PORT,127.0.0.3:$PORT"
  echo "export RESTANTE_CASSANDRA_HOST=127.0.0.1,127.0.0.2,127.0.0.3 RESTANTE_CASSANDRA_PORT=$PORT RESTANTE_CASSANDRA_DATACENTER=datacenter1"
}
