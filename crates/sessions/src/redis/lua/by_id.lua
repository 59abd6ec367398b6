-- by_id: prefix, node of the session, id, field of the node's index. Returns user, resource and row, or nothing.
local packed = redis.call('HGET', index_key(ARGV[2]), ARGV[4])
if not packed then return {} end
local user, resource = location_of(packed)
local row = redis.call('HGET', user_key(user), resource)
if not row or id_of(row) ~= ARGV[3] then return {} end
return { user, resource, row }
