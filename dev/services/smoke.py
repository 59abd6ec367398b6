#!/usr/bin/env python3
"""smoke.py NAME... - one real client call or two against servers that `up` or `with` started.

Needs from PyPI, for the names given: psycopg2-binary redis pika boto3 cassandra-driver opensearch-py. It reads the
variables that `up` prints, so:

    dev/services/with postgres redis -- python3 dev/services/smoke.py postgres redis
"""
import os
import sys
import time

env = os.environ


def postgres():
    import psycopg2
    db = psycopg2.connect(env["RESTANTE_POSTGRES_URL"])
    cur = db.cursor()
    cur.execute("create temp table t (id bigint primary key, body bytea)")
    cur.execute("insert into t values (1, %s) on conflict do nothing", (b"x",))
    cur.execute("select count(*), current_setting('server_version'), current_setting('fsync') from t")
    return cur.fetchone()


def redis():
    import redis as client
    r = client.Redis.from_url(env["RESTANTE_REDIS_URL"])
    r.hset("s:juliet", "balcony", "node1")
    r.expire("s:juliet", 60)
    answer = r.hgetall("s:juliet")
    assert answer == {b"balcony": b"node1"}
    return r.info()["redis_version"], answer


def rabbitmq():
    import pika
    c = pika.BlockingConnection(pika.URLParameters(env["RESTANTE_RABBITMQ_URL"]))
    ch = c.channel()
    ch.confirm_delivery()  # basic_publish now raises unless the broker confirms
    counts = {}
    for kind in ("classic", "quorum"):
        name = "smoke-" + kind
        ch.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        for i in range(20):
            ch.basic_publish("", name, b"%d" % i, pika.BasicProperties(delivery_mode=2), mandatory=True)
        got = 0
        for method, _, body in ch.consume(name, inactivity_timeout=10):
            assert method is not None, "no delivery within 10 s"
            assert body == b"%d" % got
            ch.basic_ack(method.delivery_tag)
            got += 1
            if got == 20:
                break
        ch.cancel()
        ch.queue_delete(name)
        counts[kind] = got
    version = c._impl.server_properties["version"]
    c.close()
    return version, counts


def s3(prefix="RESTANTE_S3"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError
    c = boto3.client(
        "s3", endpoint_url=env[prefix + "_URL"], region_name=env[prefix + "_REGION"],
        aws_access_key_id=env[prefix + "_ACCESS_KEY"], aws_secret_access_key=env[prefix + "_SECRET_KEY"],
        config=Config(s3={"addressing_style": "path"}))
    try:
        c.create_bucket(Bucket="smoke")
    except ClientError as e:
        if e.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    body = os.urandom(1 << 20)
    c.put_object(Bucket="smoke", Key="a/b/one", Body=body, Metadata={"kind": "blob"})
    got = c.get_object(Bucket="smoke", Key="a/b/one")
    assert got["Body"].read() == body and got["Metadata"] == {"kind": "blob"}
    part = c.get_object(Bucket="smoke", Key="a/b/one", Range="bytes=10-19")["Body"].read()
    assert part == body[10:20]
    # Write only if absent: needed by a content-addressed store.
    try:
        c.put_object(Bucket="smoke", Key="a/b/one", Body=b"x", IfNoneMatch="*")
        conditional = "ignored"
    except ClientError as e:
        conditional = e.response["Error"]["Code"]
    up = c.create_multipart_upload(Bucket="smoke", Key="big")
    parts = []
    for n, size in ((1, 5 << 20), (2, 1000)):
        r = c.upload_part(Bucket="smoke", Key="big", UploadId=up["UploadId"], PartNumber=n, Body=os.urandom(size))
        parts.append({"ETag": r["ETag"], "PartNumber": n})
    c.complete_multipart_upload(Bucket="smoke", Key="big", UploadId=up["UploadId"], MultipartUpload={"Parts": parts})
    keys = [o["Key"] for o in c.list_objects_v2(Bucket="smoke")["Contents"]]
    assert keys == ["a/b/one", "big"], keys
    c.delete_objects(Bucket="smoke", Delete={"Objects": [{"Key": k} for k in keys]})
    return keys, "put-if-absent: " + conditional


def minio():
    return s3("RESTANTE_MINIO")


def cassandra():
    from cassandra.cluster import Cluster
    cluster = Cluster([env["RESTANTE_CASSANDRA_HOST"]], port=int(env["RESTANTE_CASSANDRA_PORT"]), connect_timeout=30)
    s = cluster.connect()
    version = s.execute("select release_version from system.local").one()[0]
    s.execute("create keyspace if not exists smoke with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}", timeout=60)
    s.execute("create table if not exists smoke.m (peer text, at timeuuid, body blob, primary key (peer, at)) with clustering order by (at desc)", timeout=60)
    s.execute("create table if not exists smoke.r (id text primary key, rev bigint)", timeout=60)
    s.execute("truncate smoke.m", timeout=60)
    s.execute("truncate smoke.r", timeout=60)
    for _ in range(10):
        s.execute("insert into smoke.m (peer, at, body) values ('a', now(), %s)", (b"x",))
    page = len(list(s.execute("select * from smoke.m where peer = 'a' limit 5")))
    # Lightweight transactions: compare and set.
    made = s.execute("insert into smoke.r (id, rev) values ('r', 1) if not exists").one().applied
    moved = s.execute("update smoke.r set rev = 2 where id = 'r' if rev = 1").one().applied
    stale = s.execute("update smoke.r set rev = 3 where id = 'r' if rev = 1").one().applied
    cluster.shutdown()
    assert (page, made, moved, stale) == (5, True, True, False), (page, made, moved, stale)
    return version, "LWT ok"


def cassandra3():
    from cassandra import ConsistencyLevel
    from cassandra.cluster import Cluster, ExecutionProfile, EXEC_PROFILE_DEFAULT
    hosts, port = [], 0
    for contact in env["RESTANTE_CASSANDRA3_URL"].removeprefix("cassandra://").split(","):
        host, port = contact.split(":")
        hosts.append(host)
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.ALL, serial_consistency_level=ConsistencyLevel.SERIAL, request_timeout=60)
    cluster = Cluster(hosts, port=int(port), connect_timeout=30, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    s = cluster.connect()
    assert len(list(s.execute("select peer from system.peers"))) == 2
    s.execute("create keyspace if not exists smoke with replication = {'class': 'SimpleStrategy', 'replication_factor': 3}")
    s.execute("create table if not exists smoke.r (id text primary key, rev bigint)")
    s.execute("truncate smoke.r")
    made = s.execute("insert into smoke.r (id, rev) values ('r', 1) if not exists").one().applied
    moved = s.execute("update smoke.r set rev = 2 where id = 'r' if rev = 1").one().applied
    stale = s.execute("update smoke.r set rev = 3 where id = 'r' if rev = 1").one().applied
    everywhere = s.execute("select rev from smoke.r where id = 'r'").one()[0]  # consistency ALL: each node has answered
    cluster.shutdown()
    assert (made, moved, stale, everywhere) == (True, True, False, 2), (made, moved, stale, everywhere)
    return hosts, "LWT on three nodes ok"


def opensearch():
    from opensearchpy import OpenSearch
    from opensearchpy.helpers import bulk
    c = OpenSearch(env["RESTANTE_OPENSEARCH_URL"], timeout=60)
    c.indices.delete(index="smoke", ignore=[404])
    c.indices.create(index="smoke", body={
        "settings": {"number_of_shards": 1, "number_of_replicas": 0},
        "mappings": {"properties": {"body": {"type": "text", "analyzer": "english"}, "peer": {"type": "keyword"}}}})
    bulk(c, ({"_index": "smoke", "_id": i, "body": "messages waiting %d" % i, "peer": "p%d" % (i % 7)} for i in range(500)), refresh=True)
    found = c.search(index="smoke", body={"query": {"bool": {"must": [{"match": {"body": "message wait"}}], "filter": [{"term": {"peer": "p3"}}]}}})
    hits = found["hits"]["total"]["value"]
    scripted = c.update_by_query(index="smoke", refresh=True, body={"script": {"source": "ctx._source.seen = true"}, "query": {"term": {"peer": "p3"}}})["updated"]
    gone = c.delete_by_query(index="smoke", refresh=True, body={"query": {"term": {"peer": "p3"}}})["deleted"]
    assert hits == scripted == gone == 71, (hits, scripted, gone)
    return c.info()["version"]["number"], hits


failed = 0
for name in sys.argv[1:]:
    t = time.time()
    try:
        answer = globals()[name]()
        print("%-10s ok   %6.2f s  %s" % (name, time.time() - t, answer), flush=True)
    except Exception as e:
        failed += 1
        print("%-10s FAIL %6.2f s  %s: %s" % (name, time.time() - t, type(e).__name__, e), flush=True)
sys.exit(failed > 0)
