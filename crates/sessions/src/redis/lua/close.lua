-- close: prefix, node of the session, id, field of the node's index, why, 1 when that node itself makes the request and has
-- notified its owner. Returns 1; 0 when the session does not exist; -1 when another node has ended it.
local node, id, field, why, is_own = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'
if not is_own and not is_alive(node) then return 0 end
local packed = redis.call('HGET', index_key(node), field)
if not packed then return -redis.call('HEXISTS', prefix .. 'mail:' .. node, field) end
local user, resource = location_of(packed)
drop(user, resource, id)
if not is_own then notify(node, id, why) end
return 1
