#!/usr/bin/env escript
%%! +S 2:2 +Bd
%% The measurements of `restante bench sessions` in Erlang, on what a session manager in Erlang uses: small lists and maps for
%% what is remembered about a session, and a table of Mnesia in the shape of MongooseIM's for the sessions themselves.
%%
%%   escript sessions.escript 12000,1000000          the sizes of the table
%%   escript sessions.escript 500 quick              only to see that it works
%%
%% Each line that it prints is one figure: its kind, what it is about, and a number at the end.
%%
%%   otp RELEASE
%%   find KEYS ORDER CONTAINER NS
%%   merge OLD NEW CONTAINER NS
%%   table SESSIONS THREADS OP NS
%%   bytes SESSIONS BYTES
%%   counts SESSIONS NS
-mode(compile).

-record(session, {sid, usr, us, priority, info}).

%% Look-ups of a batch, and batches: their median counts.
-define(FIND_BATCH, 20000).
-define(FIND_BATCHES, 15).
%% How often the keys of `random` are shuffled.
-define(SHUFFLES, 15).
%% Operations of a batch on the table.
-define(TABLE_BATCH, 1000).
-define(TABLE_BATCHES, 21).
%% Counting users walks through the table: with more sessions than this it takes minutes and is left out.
-define(WALK_MAX, 100000).

main([Sizes]) -> run(sizes(Sizes), 1);
main([Sizes, "quick"]) -> run(sizes(Sizes), 20);
main(_) ->
    io:format(standard_error, "usage: sessions.escript SIZE,SIZE [quick]~n", []),
    halt(1).

sizes(Text) -> [list_to_integer(Size) || Size <- string:tokens(Text, ",")].

%% Divide is 1 for a real run; a quick one divides all counts by it.
run(Sizes, Divide) ->
    ok = logger:set_primary_config(level, error),
    io:format("otp ~s~n", [erlang:system_info(otp_release)]),
    [find(Keys, Order, Divide) || Keys <- [3, 10, 100, 1000], Order <- [first, last, random]],
    [merge(Old, New, Divide) || {Old, New} <- [{3, 2}, {10, 5}]],
    [table(Size, Divide) || Size <- Sizes].

%% ---- What is remembered about a session ----

%% A list with the key z among this many others, and their order.
contents(Order, Keys) ->
    Others = [{Number, y} || Number <- lists:seq(1, Keys)],
    case Order of
        first -> [{z, z} | Others];
        last -> Others ++ [{z, z}];
        random -> shuffle([{z, z} | Others])
    end.

shuffle(List) -> [Item || {_, Item} <- lists:sort([{rand:uniform(), Item} || Item <- List])].

find(Keys, Order, Divide) ->
    Lists = case Order of
        random -> [contents(random, Keys) || _ <- lists:seq(1, ?SHUFFLES)];
        _ -> [contents(Order, Keys)]
    end,
    %% All shuffles together take as long as one order that is not shuffled.
    Count = max(1, ?FIND_BATCH div Divide div length(Lists)),
    find_one(Keys, Order, keyfind, [fun() -> keyfind(Count, List, none) end || List <- Lists], Count),
    Maps = [maps:from_list(List) || List <- Lists],
    find_one(Keys, Order, maps, [fun() -> find_in_map(Count, Map, none) end || Map <- Maps], Count),
    find_one(Keys, Order, proplists, [fun() -> get_value(Count, List, none) end || List <- Lists], Count).

find_one(Keys, Order, Container, Runs, Count) ->
    Times = [median([time(Run) / Count || _ <- lists:seq(1, ?FIND_BATCHES)]) || Run <- Runs],
    io:format("find ~p ~p ~p ~.3f~n", [Keys, Order, Container, lists:sum(Times) / length(Times)]).

keyfind(0, _, Found) -> Found;
keyfind(Count, List, _) -> keyfind(Count - 1, List, lists:keyfind(z, 1, List)).

find_in_map(0, _, Found) -> Found;
find_in_map(Count, Map, _) -> find_in_map(Count - 1, Map, maps:get(z, Map)).

get_value(0, _, Found) -> Found;
get_value(Count, List, _) -> get_value(Count - 1, List, proplists:get_value(z, List)).

%% One of two, and two of five, exist already.
merge(Old, New, Divide) ->
    Count = max(1, ?FIND_BATCH div Divide),
    OldList = [{Key, y} || Key <- lists:seq(1, Old)],
    First = Old + 1 - New div 2,
    NewList = [{Key, x} || Key <- lists:seq(First, First + New - 1)],
    {OldMap, NewMap} = {maps:from_list(OldList), maps:from_list(NewList)},
    merge_one(Old, New, orddict, fun() -> merge_lists(Count, OldList, NewList, none) end, Count),
    merge_one(Old, New, maps, fun() -> merge_maps(Count, OldMap, NewMap, none) end, Count).

merge_one(Old, New, Container, Run, Count) ->
    Time = median([time(Run) / Count || _ <- lists:seq(1, ?FIND_BATCHES)]),
    io:format("merge ~p ~p ~p ~.3f~n", [Old, New, Container, Time]).

%% With the conversions from and to lists that MongooseIM made before it used maps.
merge_lists(0, _, _, Merged) -> Merged;
merge_lists(Count, Old, New, _) ->
    Merged = orddict:to_list(
        orddict:merge(fun(_, _, Newer) -> Newer end, orddict:from_list(Old), orddict:from_list(New))
    ),
    merge_lists(Count - 1, Old, New, Merged).

merge_maps(0, _, _, Merged) -> Merged;
merge_maps(Count, Old, New, _) -> merge_maps(Count - 1, Old, New, maps:merge(Old, New)).

%% ---- The table of sessions ----

table(Size, Divide) ->
    ok = mnesia:start(),
    {atomic, ok} = mnesia:create_table(session, [
        {ram_copies, [node()]},
        {attributes, record_info(fields, session)}
    ]),
    {atomic, ok} = mnesia:add_table_index(session, #session.usr),
    {atomic, ok} = mnesia:add_table_index(session, #session.us),
    Before = erlang:memory(ets),
    fill(Size),
    io:format("bytes ~p ~.1f~n", [Size, (erlang:memory(ets) - Before) / Size]),
    Batch = max(1, min(?TABLE_BATCH div Divide, Size div 4)),
    Times = fun(Op, Prepare, Do) -> table_op(Size, Op, Batch, Divide, Prepare, Do) end,
    Times(by_user, fun(Number) -> us(Number) end, fun by_user/1),
    Times(by_address, fun(Number) -> usr(Number) end,
        fun(Usr) -> [_] = mnesia:dirty_index_read(session, Usr, #session.usr) end),
    Times(by_id, fun(Number) -> sid(Number) end, fun(Sid) -> [_] = mnesia:dirty_read(session, Sid) end),
    Times(merge_info, fun row/1,
        fun(Row = #session{info = Info}) -> write(Row#session{info = maps:put(cc, 2, Info)}) end),
    Times(set_presence, fun row/1, fun(Row) -> write(Row#session{priority = 1}) end),
    two_readers(Size, Batch, Divide),
    close_and_open(Size, Batch, Divide),
    count(Size),
    stopped = mnesia:stop().

fill(0) -> ok;
fill(Number) -> write(row(Number)), fill(Number - 1).

%% Random users are looked up; their keys are made before the clock runs.
table_op(Size, Op, Batch, Divide, Prepare, Do) ->
    One = fun() ->
        Keys = [Prepare(rand:uniform(Size)) || _ <- lists:seq(1, Batch)],
        time(fun() -> each(Keys, Do) end) / Batch
    end,
    One(),
    Times = [One() || _ <- lists:seq(1, max(3, ?TABLE_BATCHES div Divide))],
    io:format("table ~p 1 ~p ~.1f~n", [Size, Op, median(Times)]).

%% Two processes at once: the time divided by the look-ups of both together.
two_readers(Size, Batch, Divide) ->
    Rounds = max(3, ?TABLE_BATCHES div Divide),
    Self = self(),
    Read = fun() ->
        Keys = [us(rand:uniform(Size)) || _ <- lists:seq(1, Batch * Rounds)],
        Self ! ready,
        receive go -> ok end,
        Self ! {took, time(fun() -> each(Keys, fun by_user/1) end)}
    end,
    Readers = [spawn_link(Read) || _ <- [1, 2]],
    [receive ready -> ok end || _ <- Readers],
    [Reader ! go || Reader <- Readers],
    Took = [receive {took, Time} -> Time end || _ <- Readers],
    io:format("table ~p 2 by_user ~.1f~n", [Size, lists:max(Took) / (2 * Batch * Rounds)]).

%% Sessions are closed, and opened again by batches, so that the table keeps its size. Opening writes, and then reads the
%% sessions of the user to find one that has the same resource.
close_and_open(Size, Batch, Divide) ->
    One = fun() ->
        Rows = [row(Number) || Number <- lists:usort([rand:uniform(Size) || _ <- lists:seq(1, Batch)])],
        Close = time(fun() -> each(Rows, fun(#session{sid = Sid}) -> delete(Sid) end) end),
        Open = time(fun() -> each(Rows, fun(Row = #session{us = Us}) -> write(Row), by_user(Us) end) end),
        {Close / length(Rows), Open / length(Rows)}
    end,
    One(),
    Times = [One() || _ <- lists:seq(1, max(3, ?TABLE_BATCHES div Divide))],
    io:format("table ~p 1 close ~.1f~n", [Size, median([Close || {Close, _} <- Times])]),
    io:format("table ~p 1 open ~.1f~n", [Size, median([Open || {_, Open} <- Times])]).

%% How many users there are, as MongooseIM counts them.
count(Size) when Size > ?WALK_MAX -> ok;
count(Size) ->
    Walk = fun() -> Size = walk(mnesia:dirty_first(session), #{}) end,
    io:format("counts ~p ~.1f~n", [Size, median([time(Walk) || _ <- [1, 2, 3]]) / 1]).

walk('$end_of_table', Users) -> maps:size(Users);
walk(Sid, Users) ->
    [#session{us = Us}] = mnesia:dirty_read(session, Sid),
    walk(mnesia:dirty_next(session, Sid), Users#{Us => true}).

by_user(Us) -> [_ | _] = mnesia:dirty_index_read(session, Us, #session.us).

write(Row) -> mnesia:sync_dirty(fun() -> mnesia:write(Row) end).

delete(Sid) -> mnesia:sync_dirty(fun() -> mnesia:delete({session, Sid}) end).

each([], _) -> ok;
each([Key | Keys], Do) -> Do(Key), each(Keys, Do).

row(Number) ->
    #session{
        sid = sid(Number),
        usr = usr(Number),
        us = us(Number),
        priority = 0,
        info = #{ip => {{10, 0, 0, Number rem 256}, 49152 + Number rem 16384}, conn => c2s_tls, cc => 1}
    }.

%% The time in microseconds and the process of a session; here one process has them all.
sid(Number) -> {1600000000000000 + Number, whereis(init)}.

us(Number) -> {name("user-", 8, Number), <<"localhost">>}.

usr(Number) -> {name("user-", 8, Number), <<"localhost">>, name("mobile-", 4, Number rem 10000)}.

name(Prefix, Digits, Number) -> iolist_to_binary([Prefix, string:right(integer_to_list(Number), Digits, $0)]).

%% ---- Time ----

time(Run) ->
    Begun = erlang:monotonic_time(nanosecond),
    Run(),
    erlang:monotonic_time(nanosecond) - Begun.

median(Numbers) -> lists:nth((length(Numbers) + 1) div 2, lists:sort(Numbers)).
