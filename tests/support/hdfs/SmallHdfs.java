// A real NameNode and DataNode on loopback, for tests: it says both ports and ends with its input.
// Arguments: the port of WebHDFS, the folder of its data.

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class SmallHdfs {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        Configuration conf = new Configuration();
        for (String key : new String[] {"datanode.address", "datanode.http.address", "datanode.ipc.address"}) {
            conf.set("dfs." + key, "127.0.0.1:0");
        }
        conf.set("dfs.namenode.http-address", "127.0.0.1:" + port);
        conf.set("dfs.namenode.rpc-bind-host", "127.0.0.1");
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        conf.setBoolean("dfs.permissions.enabled", false);
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[1]);
        MiniDFSCluster cluster =
            new MiniDFSCluster.Builder(conf).numDataNodes(1).nameNodeHttpPort(port).build();
        try {
            cluster.waitActive();
            System.out.println("ready " + port + " " + cluster.getNameNodePort());
            System.out.flush();
            while (System.in.read() >= 0) { }
        } finally {
            cluster.shutdown();
        }
    }
}
