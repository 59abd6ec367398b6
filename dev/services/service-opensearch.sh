# OpenSearch from Maven, one node, no security plugin. The server's own start class runs it, with its bootstrap checks
# and its security manager. What a release archive would add is created here: the modules' folders, each with a
# descriptor and a security policy, and the configuration.
# Ports: HTTP, transport.
# shellcheck shell=bash
: "${RESTANTE_OPENSEARCH_HEAP:=1024m}"
: "${RESTANTE_OPENSEARCH_JAVA_OPTIONS:=}"
OPENSEARCH_VERSION=$(sed -n 's/.*<opensearch>\(.*\)<.*/\1/p' "$HERE/opensearch/pom.xml")

opensearch_install() {
  local home=$DL/opensearch-$OPENSEARCH_VERSION
  need_java
  need_debian "have curl" curl
  [ ! -f "$home/.complete" ] || return 0
  assemble "$home" "$HERE/opensearch/pom.xml"
  opensearch_module "$home" transport-netty4 org.opensearch.transport.Netty4Plugin 'transport-netty4-client-*' 'netty-*'
  opensearch_module "$home" analysis-common org.opensearch.analysis.common.CommonAnalysisPlugin 'analysis-common-*'
  opensearch_module "$home" reindex org.opensearch.index.reindex.ReindexPlugin 'reindex-client-*' \
    'opensearch-rest-client-*' 'opensearch-ssl-config-*' 'http*' 'commons-codec-*' 'commons-logging-*'
  opensearch_module "$home" lang-painless org.opensearch.painless.PainlessPlugin 'lang-painless-*' \
    'opensearch-scripting-painless-spi-*' 'antlr4-runtime-*' 'asm-*'
  mkdir -p "$home/plugins"
  touch "$home/.complete"
}

# opensearch_module HOME NAME CLASS JAR-PATTERN... : move its jars from lib to its own folder.
# A jar in both places is 'jar hell' to the server and it would not start.
opensearch_module() {
  local home=$1 name=$2 class=$3 pattern; shift 3
  mkdir -p "$home/modules/$name"
  for pattern in "$@"; do
    # shellcheck disable=SC2086
    mv "$home"/lib/$pattern.jar "$home/modules/$name/" ||
      die "opensearch: no jar $pattern in what Maven brought; 'down --purge-all opensearch' and look at opensearch/pom.xml"
  done
  cat >"$home/modules/$name/plugin-descriptor.properties" <<CONF
name=$name
description=$name
version=$OPENSEARCH_VERSION
opensearch.version=$OPENSEARCH_VERSION
java.version=11
classname=$class
has.native.controller=false
CONF
  echo 'grant { permission java.security.AllPermission; };' >"$home/modules/$name/plugin-security.policy"
}

opensearch_start() {
  local home=$DL/opensearch-$OPENSEARCH_VERSION run=$RUN/opensearch
  need_free_ports opensearch "$PORT" 2
  mkdir -p "$run/config" "$run/logs" "$run/tmp"
  plain_user opensearch "$home/lib"
  cat >"$run/config/opensearch.yml" <<CONF
cluster.name: restante
node.name: restante
path.data: "$DATA/opensearch"
path.logs: "$run/logs"
network.host: 127.0.0.1
http.port: $PORT
transport.port: $((PORT + 1))
discovery.type: single-node
action.auto_create_index: true
cluster.routing.allocation.disk.threshold_enabled: false
CONF
  cat >"$run/config/log4j2.properties" <<'CONF'
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %c{1.} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
CONF
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  export OPENSEARCH_PATH_CONF=$run/config
  local options
  read -ra options <<<"$RESTANTE_OPENSEARCH_JAVA_OPTIONS"
  spawn opensearch "${PLAIN[@]}" "$RESTANTE_SERVICES_JAVA" -Xms"$RESTANTE_OPENSEARCH_HEAP" -Xmx"$RESTANTE_OPENSEARCH_HEAP" "${options[@]}" \
    -XX:+UseG1GC -XX:+ExitOnOutOfMemoryError -XX:+PerfDisableSharedMem -XX:ErrorFile="$run/hs_err.log" \
    -XX:HeapDumpPath="$run" -Djava.io.tmpdir="$run/tmp" -Dfile.encoding=UTF-8 -Djna.nosys=true \
    -Djava.locale.providers=SPI,COMPAT -Dopensearch.networkaddress.cache.ttl=60 \
    -Dio.netty.noUnsafe=true -Dio.netty.noKeySetOptimization=true -Dio.netty.recycler.maxCapacityPerThread=0 \
    -Dlog4j.shutdownHookEnabled=false -Dlog4j2.disable.jmx=true \
    -Dopensearch.path.home="$home" -Dopensearch.path.conf="$run/config" \
    -Dopensearch.distribution.type=tar -Dopensearch.bundled_jdk=false \
    -cp "$home/lib/*" org.opensearch.bootstrap.OpenSearch
}
opensearch_ready() {
  curl -sf -m 10 "http://127.0.0.1:$PORT/_cluster/health?wait_for_status=yellow&timeout=5s" | grep -q '"timed_out":false'
}
opensearch_stop() { stop_pid opensearch TERM 60; }
opensearch_env() { echo "export RESTANTE_OPENSEARCH_URL=http://127.0.0.1:$PORT"; }
