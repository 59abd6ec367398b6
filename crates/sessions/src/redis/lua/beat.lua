-- beat: prefix, node, token, name, milliseconds of the lease.
-- Takes or renews a lease. Answers whether it was held, the sessions of this node that others have ended, and, of the part
-- that follows, the nodes; or nothing when another process has the lease.
local lease = prefix .. 'lease:' .. ARGV[2]
local was_held = lives(ARGV[2])
if was_held and redis.call('GET', lease) ~= ARGV[3] then return {} end
redis.call('SET', lease, ARGV[3], 'PX', ARGV[5])
redis.call('HSET', prefix .. 'nodes', ARGV[2], ARGV[4])
local mail = redis.call('HSCAN', prefix .. 'mail:' .. ARGV[2], 0, 'COUNT', 100)[2]

