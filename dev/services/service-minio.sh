# MinIO, one node, one drive. Access key 'restante', secret key 'restante-secret'. Its authors tag no versions that Go
# understands, so a pseudo-version is pinned.
# shellcheck shell=bash
MINIO_VERSION=v0.0.0-20260212201848-7aac2a2c5b7c

minio_install() {
  need_debian "have curl" curl
  go_program "$DL/minio-$MINIO_VERSION/minio" "github.com/minio/minio@$MINIO_VERSION"
}
minio_start() {
  need_free_ports minio "$PORT" 1
  spawn minio env HOME="$DATA/minio" MINIO_ROOT_USER=restante MINIO_ROOT_PASSWORD=restante-secret \
    MINIO_BROWSER=off MINIO_UPDATE=off MINIO_CALLHOME_ENABLE=off CI=true \
    "$DL/minio-$MINIO_VERSION/minio" server --quiet --config-dir "$DATA/minio/config" \
    --address "127.0.0.1:$PORT" "$DATA/minio/drive"
}
minio_ready() { curl -sf -m 2 "http://127.0.0.1:$PORT/minio/health/ready"; }
minio_stop() { stop_pid minio TERM 20; }
minio_env() {
  echo "export RESTANTE_MINIO_URL=http://127.0.0.1:$PORT RESTANTE_MINIO_REGION=us-east-1"
  echo "export RESTANTE_MINIO_ACCESS_KEY=restante RESTANTE_MINIO_SECRET_KEY=restante-secret"
}
