# Apache Cassandra from Maven, one node, no authentication, data center 'datacenter1'. The jars hold no cassandra.yaml
# and no start script, so both are made here.
# Ports: native protocol, storage, storage over TLS, JMX.
# shellcheck shell=bash
: "${RESTANTE_CASSANDRA_HEAP:=1024m}"
CASSANDRA_VERSION=$(sed -n '/<artifactId>cassandra-all</{n;s/[^0-9]*\([0-9.]*\).*/\1/p;}' "$HERE/cassandra/pom.xml")

cassandra_install() {
  need_java
  assemble "$DL/cassandra-$CASSANDRA_VERSION" "$HERE/cassandra/pom.xml"
  touch "$DL/cassandra-$CASSANDRA_VERSION/.complete"
}

# JDK internals that the server accesses (Java 17 hides them by default).
CASSANDRA_JAVA_OPENS=(
  --add-exports=java.base/jdk.internal.misc=ALL-UNNAMED
  --add-exports=java.base/java.lang.ref=ALL-UNNAMED
  --add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED
  --add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED
  --add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED
  --add-exports=java.sql/java.sql=ALL-UNNAMED
  --add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED
  --add-opens=java.base/java.io=ALL-UNNAMED
  --add-opens=java.base/java.lang=ALL-UNNAMED
  --add-opens=java.base/java.lang.module=ALL-UNNAMED
  --add-opens=java.base/java.lang.reflect=ALL-UNNAMED
  --add-opens=java.base/java.nio=ALL-UNNAMED
  --add-opens=java.base/java.util=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.loader=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.math=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.module=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.ref=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.reflect=ALL-UNNAMED
  --add-opens=java.base/jdk.internal.util.jar=ALL-UNNAMED
  --add-opens=java.base/sun.nio.ch=ALL-UNNAMED
  --add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED
)

cassandra_start() {
  need_free_ports cassandra "$PORT" 4
  # One node waits for no gossip and no ring to settle.
  cassandra_configure "$RUN/cassandra" "$DATA/cassandra" 127.0.0.1 127.0.0.1 <<'CONF'
num_tokens: 8
commitlog_total_space: 512MiB
memtable_heap_space: 128MiB
memtable_offheap_space: 128MiB
file_cache_size: 64MiB
key_cache_size: 16MiB
CONF
  cassandra_spawn cassandra "$RESTANTE_CASSANDRA_HEAP" 512m $((PORT + 3)) \
    -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=1
}

# cassandra_configure RUN DATA ADDRESS SEED,... : writes a node's configuration; settings of the service are read from
# standard input.
cassandra_configure() {
  local run=$1 d=$2 address=$3 seeds storage=$((PORT + 1))
  seeds=${4//,/:$storage,}:$storage
  mkdir -p "$run/triggers" "$d"
  { cat <<CONF; cat; } >"$run/cassandra.yaml"
cluster_name: restante
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: $address
storage_port: $storage
ssl_storage_port: $((storage + 1))
rpc_address: $address
native_transport_port: $PORT
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "$seeds"
data_file_directories: ["$d/data"]
commitlog_directory: "$d/commitlog"
saved_caches_directory: "$d/saved_caches"
hints_directory: "$d/hints"
cdc_raw_directory: "$d/cdc_raw"
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_segment_size: 32MiB
auto_snapshot: false
CONF
  cat >"$run/logback.xml" <<'CONF'
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
CONF
}

# cassandra_spawn NAME HEAP DIRECT-MEMORY JMX-PORT OPTION... : NAME is the service's, or SERVICE/NODE.
cassandra_spawn() {
  local name=$1 heap=$2 direct=$3 jmx=$4 lib=$DL/cassandra-$CASSANDRA_VERSION/lib run=$RUN/$1 d=$DATA/$1 jamm; shift 4
  jamm=$(echo "$lib"/jamm-*.jar)
  [ -f "$jamm" ] || die "cassandra: the jamm agent is not in $lib; 'down --purge-all cassandra' and try again"
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  spawn "$name" "$RESTANTE_SERVICES_JAVA" -Xms"$heap" -Xmx"$heap" -Xss384k \
    -XX:+UseG1GC -XX:MaxDirectMemorySize="$direct" -XX:+ExitOnOutOfMemoryError -XX:+PerfDisableSharedMem \
    -XX:ErrorFile="$run/hs_err.log" -XX:HeapDumpPath="$run" \
    "${CASSANDRA_JAVA_OPENS[@]}" -Djdk.attach.allowAttachSelf=true \
    -Dio.netty.tryReflectionSetAccessible=true -javaagent:"$jamm" \
    -Dcassandra.config="file://$run/cassandra.yaml" -Dlogback.configurationFile="file://$run/logback.xml" \
    -Dcassandra.storagedir="$d" -Dcassandra.logdir="$run" -Dcassandra.triggers_dir="$run/triggers" \
    -Dcassandra.jmx.local.port="$jmx" "$@" \
    -Dcassandra-foreground=yes -cp "$lib/*" org.apache.cassandra.service.CassandraDaemon
}

# cassandra_answers ADDRESS : a native protocol OPTIONS frame (opcode 5) is answered with SUPPORTED (6).
cassandra_answers() {
  local opcode
  exec 3<>"/dev/tcp/$1/$PORT" || return 1
  printf '\004\000\000\000\005\000\000\000\000' >&3
  opcode=$(timeout 5 head -c 5 <&3 | od -An -j4 -tu1 | tr -d ' ')
  exec 3>&-
  [ "$opcode" = 6 ]
}
cassandra_ready() { cassandra_answers 127.0.0.1; }
cassandra_stop() { stop_pid cassandra TERM 90; }
cassandra_env() {
  echo "export RESTANTE_CASSANDRA_URL=cassandra://127.0.0.1:$PORT"
  echo "export RESTANTE_CASSANDRA_HOST=127.0.0.1 RESTANTE_CASSANDRA_PORT=$PORT RESTANTE_CASSANDRA_DATACENTER=datacenter1"
}
